/* The page of the labs: an editor for the files of a skeleton, and a worker that checks and runs these files. */
"use strict";

M.desk = {
  labs: [], lab: null, file: "", texts: {}, count: 0, waiting: new Map(),

  async start() {
    const root = document.documentElement, stored = this.kept("theme");
    root.dataset.theme = stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    M.by("theme-button").onclick = () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; this.keep("theme", root.dataset.theme); };
    this.labs = await (await fetch("labs.json")).json();
    const select = M.by("lab");
    select.append(...this.labs.map((lab) => M.el("option", { value: lab.number }, `Lab ${lab.number}: ${lab.title}`)));
    select.onchange = () => { location.hash = select.value; };
    addEventListener("hashchange", () => this.open());
    M.by("editor").oninput = () => { this.texts[this.file] = M.by("editor").value; this.keep(this.lab.name, JSON.stringify(this.texts)); };
    M.by("check").onclick = () => this.check();
    M.by("run").onclick = () => this.run();
    M.by("stop").onclick = () => { this.begin(); M.text(M.by("state"), "stopped"); };
    M.by("again").onclick = () => { if (confirm("Throw away what you wrote in this lab?")) { this.keep(this.lab.name, null); this.open(); } };
    M.by("hand-in").onclick = () => this.handIn();
    this.open();
    this.begin();
  },

  kept(name) { try { return localStorage.getItem(name); } catch { return null; } },
  keep(name, text) { try { if (text === null) localStorage.removeItem(name); else localStorage.setItem(name, text); } catch { /* without storage, the text is lost when the page closes */ } },

  /* Start a worker. End the earlier worker, in which a student's code may loop forever. */
  begin() {
    if (this.worker) this.worker.terminate();
    this.waiting.clear();
    this.busy(false);
    this.worker = new Worker("lab-worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.outcome) { this.show(JSON.parse(data.outcome)); return; }
      const [done, failed] = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error) failed(new Error(data.error)); else done(data.answer);
    };
    this.worker.onerror = () => M.text(M.by("state"), "this browser cannot run Python: it needs WebAssembly and module workers");
  },

  ask(what, more = {}) {
    this.count += 1;
    const id = this.count;
    return new Promise((done, failed) => { this.waiting.set(id, [done, failed]); this.worker.postMessage({ id, what, number: this.lab.number, files: JSON.stringify(this.texts), ...more }); });
  },

  open() {
    const wanted = Number(location.hash.slice(1));
    this.lab = this.labs.find((lab) => lab.number === wanted) || this.labs[0];
    M.by("lab").value = this.lab.number;
    document.title = `mrclab: lab ${this.lab.number}`;
    M.text(M.by("about"), `${this.lab.minutes} minutes`);
    M.by("page").innerHTML = this.lab.page;
    M.by("page").scrollTop = 0;
    this.texts = { ...this.lab.files };
    try { Object.assign(this.texts, JSON.parse(this.kept(this.lab.name) || "{}")); } catch { /* stored by another version of the page */ }
    const tabs = Object.keys(this.texts).map((name) => M.el("button", { role: "tab", "data-file": name, onclick: () => this.choose(name) }, name));
    M.by("files").replaceChildren(...tabs);
    this.choose(Object.keys(this.texts)[0]);
    M.by("outcomes").replaceChildren();
    M.by("output").hidden = true;
    M.text(M.by("state"), "");
  },

  choose(name) {
    this.file = name;
    const editor = M.by("editor");
    editor.value = this.texts[name];
    editor.wrap = name.endsWith(".md") ? "soft" : "off";
    editor.setAttribute("aria-label", name.endsWith(".pcap") ? `${name}, in hexadecimal` : name);
    for (const tab of M.by("files").children) tab.setAttribute("aria-selected", tab.dataset.file === name);
    M.by("run").hidden = !/\.(py|pcap)$/.test(name);
    M.text(M.by("run"), name.endsWith(".pcap") ? "Show its way" : "Run this file");
  },

  busy(is, words = "") {
    for (const id of ["check", "run", "hand-in"]) M.by(id).disabled = is;
    M.by("stop").hidden = !is;
    M.text(M.by("state"), words);
  },

  show(outcome) {
    const kind = outcome.passed ? "passed" : outcome.tried ? "failed" : "elsewhere";
    const words = { passed: "passed: ", failed: "not yet: ", elsewhere: "not tried here: " }[kind];
    M.by("outcomes").append(M.el("li", { class: kind }, M.el("span", { class: "unseen" }, words), outcome.check, outcome.hint && M.el("p", {}, outcome.hint)));
  },

  async work(words, job) {
    this.busy(true, words);
    try { this.busy(false, await job()); } catch (error) { this.busy(false, error.message); }
  },

  check() {
    M.by("outcomes").replaceChildren();
    M.by("output").hidden = true;
    return this.work("checking", async () => {
      const all = JSON.parse(await this.ask("check")), here = all.filter((one) => one.passed || one.tried);
      const passed = here.filter((one) => one.passed).length, rest = all.length - here.length;
      return `${passed === here.length ? `All ${passed} checks pass` : `${passed} of ${here.length} checks pass`}${rest ? `; ${rest} not tried here` : ""}`;
    });
  },

  run() {
    const output = M.by("output");
    M.by("outcomes").replaceChildren();
    output.hidden = true;
    return this.work(`running ${this.file}`, async () => {
      M.text(output, await this.ask("run", { name: this.file }));
      output.hidden = false;
      return "";
    });
  },

  handIn() {
    return this.work("packing", async () => {
      const bytes = await this.ask("hand-in", { when: new Date().toISOString() });
      const link = M.el("a", { href: URL.createObjectURL(new Blob([bytes], { type: "application/zip" })), download: `${this.lab.name}.zip` });
      link.click();
      return "packed, with the outcome of the last check";
    });
  },
};

M.desk.start();
