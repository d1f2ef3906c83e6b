/* The source of frames in a page of `make site`: a worker that simulates. It has the same interface as M.Live. */
"use strict";

M.Play = class {
  async open(take, over) {
    this.worker = new Worker("worker.js", { type: "module" });
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => {
      if (data.frame) { this.timeline.push(JSON.parse(data.frame)); return; }
      this.waiting.get(data.id)(JSON.parse(data.answer));
      this.waiting.delete(data.id);
    };
    this.worker.onerror = () => over("this browser cannot run the simulation: it needs WebAssembly and module workers");
    this.timeline = new M.Timeline(take, () => M.app.forget(), { hold: (paused) => this.send("hold", "", paused) });
    M.app.say("Python starts in this page", true);
    let wish = "{}";
    try { wish = decodeURIComponent(location.hash.slice(1)) || "{}"; JSON.parse(wish); } catch { wish = "{}"; }
    this.about = await this.send("open", "", wish);
    M.by("notice").hidden = true;
    if (this.about.error) { const why = this.about.error; this.about = await this.send("open", "", "{}"); setTimeout(() => M.app.say(why)); }
    setTimeout(() => { this.timeline.open(); this.bar(); });
    return this.about;
  }

  bar() {
    const select = M.by("fabric-choice"), { fabrics } = this.about.sim;
    select.hidden = false;
    select.append(...fabrics.map((name) => M.el("option", { value: name, selected: name === this.about.fabric.name }, name)));
    select.onchange = () => { location.hash = encodeURIComponent(JSON.stringify({ fabric: select.value })); location.reload(); };
    const button = M.by("link-button");
    button.hidden = false;
    button.onclick = async () => {
      await this.remember();
      try { await navigator.clipboard.writeText(location.href); M.app.say("The address of what you see is in the clipboard", true); } catch { M.app.say("The address bar has the address of what you see", true); }
    };
    addEventListener("hashchange", () => { if (!this.ours) location.reload(); this.ours = false; });
  }

  /* Put the scene and the viewer's faults and restores into the page's address. */
  async remember() {
    const wish = await this.send("link");
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(wish))}`);
  }

  send(what, path = "", body = null) {
    this.count += 1;
    const id = this.count;
    return new Promise((done) => { this.waiting.set(id, done); this.worker.postMessage({ id, what, path, body }); });
  }

  async ask(path, body) {
    const answer = await this.send("ask", path, JSON.stringify(body === undefined ? null : path === "pace" ? { pace: body.ns_per_s } : body));
    if (answer.error) throw new Error(answer.error);
    if (["fault", "restore", "traffic", "pace"].includes(path)) this.remember();
    return answer;
  }

  packets(card, transport) { return this.ask(`packets/${card}/${transport}`); }
};
