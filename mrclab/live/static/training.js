/* The page of a training run. While the run writes its files, the page shows the new data. */
"use strict";

M.training = {
  whole: {}, waiting: false,

  start() {
    const root = document.documentElement;
    const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
    root.dataset.theme = stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    M.by("theme-button").onclick = () => {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* without storage, the choice is lost when the page closes */ }
      this.soon();
    };
    addEventListener("resize", () => this.soon());
    if (window.RECORDING) { this.replay(window.RECORDING); return; }
    const stream = new EventSource("events");
    stream.onmessage = (event) => {
      M.by("notice").hidden = true;
      this.whole = { ...this.whole, ...JSON.parse(event.data) };
      this.soon();
    };
    stream.onerror = () => { M.text(M.by("notice"), "no answer: trying again"); M.by("notice").hidden = false; };
  },

  /* Replay a finished run from its beginning: in 20 s, or as the viewer moves the slider. */
  replay(recording) {
    const reps = Object.values(recording).filter((one) => one.end_us), last = Math.max(...reps.map((one) => one.end_us[one.end_us.length - 1]));
    const seek = M.by("seek"), button = M.by("play");
    let at = 0, playing = !matchMedia("(prefers-reduced-motion: reduce)").matches, before = performance.now();
    M.by("replay-bar").hidden = false;
    document.title = recording.about.title;
    const show = () => {
      this.whole = Object.fromEntries(Object.entries(recording).map(([name, one]) => [name, one.end_us ? this.until(one, at) : { ...one, replay: at < last }]));
      seek.value = (1000 * at) / last;
      M.text(M.by("clock"), M.time(at));
      M.text(button, playing ? "❚❚" : "▶");
      button.setAttribute("aria-label", playing ? "pause" : "play");
      this.soon();
    };
    button.onclick = () => { playing = !playing; if (at >= last) at = 0; show(); };
    seek.oninput = () => { at = (seek.value / 1000) * last; playing = false; show(); };
    const step = (now) => {
      if (playing) { at = Math.min(last, at + ((now - before) / 20000) * last); if (at >= last) playing = false; show(); }
      before = now;
      requestAnimationFrame(step);
    };
    if (!playing) at = last;
    this.last = last;
    show();
    requestAnimationFrame(step);
  },

  /* A repetition's data at a moment of the run. Values that need all steps are null until the end. */
  until(one, us) {
    const done = one.end_us.filter((end) => end <= us).length, over = done === one.end_us.length;
    const faults = one.faults.filter((fault) => fault.at_us <= us).map((fault) => ({ ...fault, until_us: fault.until_us !== null && fault.until_us <= us ? fault.until_us : null }));
    const rest = over ? {} : { stalled_us: null, longest_us: null, stalled_share: null, crashes: null };
    return { ...one, ...rest, running: !over, end_us: one.end_us.slice(0, done), step_us: one.step_us.slice(0, done), losses: one.losses.slice(0, done), faults };
  },

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.show(); });
  },

  colour(name) {
    const known = { mrc: "blue", rocev2: "orange", frr: "purple", control: "soft" };
    const others = ["pink", "good", "warn", "purple", "orange", "blue"];
    return known[name] || others[this.whole.about.transports.indexOf(name) % others.length];
  },

  /* The newest repetition of each transport that has begun. */
  newest() {
    const found = new Map();
    for (const name of this.whole.about.transports)
      for (let n = 0; n < this.whole.about.repetitions; n += 1) {
        const one = this.whole[`${name}-${n}`];
        if (one) found.set(name, one);
      }
    return found;
  },

  show() {
    const { about } = this.whole;
    if (!about) return;
    const newest = this.newest();
    const running = [...newest.values()].find((one) => one.running && !about.finished);
    const now = about.replay !== undefined ? (about.replay ? "replay" : "replay: the end") : about.finished ? "finished: report.html has all repetitions"
      : running ? `${running.transport}, repetition ${running.number + 1} of ${about.repetitions}, step ${running.losses.length} of ${about.steps}`
      : "the next job begins soon";
    M.text(M.by("where"), `${about.scenario} on ${about.topology}: ${now}`);
    this.table(newest, running);
    this.losses(newest);
    this.steps(newest);
  },

  table(newest, running) {
    const { about } = this.whole;
    const heads = ["", "steps", "loss", "stalled", "share of time", "longest stall", `a timeout of ${M.time(about.timeout_us)} would end it`, ""];
    const rows = about.transports.map((name) => {
      const one = newest.get(name);
      const title = M.el("td", { class: "name" }, name);
      if (!one) return M.el("tr", { style: `--c: var(--${this.colour(name)})` }, title, M.el("td", { class: "now", colspan: 7 }, "not begun"));
      const last = one.faults.filter((fault) => fault.until_us === null).map((fault) => `${fault.kind} at ${fault.place}`);
      const now = one.failure ? "failed" : one === running || (this.last && one.running) ? (last.length ? last.join(", ") : "running") : "";
      const crashes = one.crashes === null ? "" : one.crashes ? `${M.times(one.crashes)}, ${one.lost_steps} steps lost` : "never";
      return M.el("tr", { style: `--c: var(--${this.colour(name)})`, "data-training": name }, title,
        M.el("td", { "data-steps": one.losses.length }, `${one.losses.length} of ${about.steps}`),
        M.el("td", {}, one.losses.length ? one.losses[one.losses.length - 1].toFixed(3) : ""),
        M.el("td", {}, M.time(one.stalled_us)), M.el("td", {}, one.stalled_share === null ? "" : `${(100 * one.stalled_share).toFixed(1)} %`),
        M.el("td", {}, M.time(one.longest_us)), M.el("td", {}, crashes), M.el("td", { class: "now" }, now));
    });
    M.by("table").replaceChildren(M.el("table", {}, M.el("thead", {}, M.el("tr", {}, ...heads.map((text) => M.el("th", {}, text)))), M.el("tbody", {}, ...rows)));
  },

  /* The end of the time axis: the same for all charts, so that stalls can be compared. */
  end(newest) {
    if (this.last) return this.last;
    return Math.max(1e6, ...[...newest.values()].map((one) => one.end_us[one.end_us.length - 1] || 0));
  },

  losses(newest) {
    const [c, width, height] = M.canvas(M.by("losses"));
    const end = this.end(newest), left = 44, bottom = height - 20;
    const all = [...newest.values()].flatMap((one) => one.losses);
    const low = Math.floor(Math.min(...all, 1e9) * 2) / 2, high = Math.ceil(Math.max(...all, low + 0.5) * 2) / 2;
    const x = (us) => left + (us / end) * (width - left - 8), y = (loss) => bottom - ((loss - low) / (high - low)) * (bottom - 8);
    c.font = "12px system-ui"; c.strokeStyle = M.colour("line"); c.fillStyle = M.colour("soft"); c.textAlign = "right";
    for (let loss = low; loss <= high + 1e-9; loss += (high - low) / 4) {
      c.beginPath(); c.moveTo(left, y(loss)); c.lineTo(width, y(loss)); c.stroke(); c.fillText(loss.toFixed(1), left - 6, y(loss) + 4);
    }
    c.textAlign = "center";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((s) => end / (s * 1e6) <= 8) || 1000;
    for (let s = every; s * 1e6 <= end; s += every) c.fillText(`${s} s`, Math.min(width - 16, x(s * 1e6)), height - 4);
    const dashes = { orange: [7, 3], purple: [10, 3, 2, 3], soft: [2, 3] };
    for (const [name, one] of newest) {
      c.strokeStyle = M.colour(this.colour(name)); c.lineWidth = name === "mrc" ? 3 : 2; c.setLineDash(dashes[this.colour(name)] || []);
      c.beginPath();
      one.losses.forEach((loss, n) => (n ? c.lineTo(x(one.end_us[n]), y(loss)) : c.moveTo(x(one.end_us[n]), y(loss))));
      c.stroke(); c.setLineDash([]);
    }
  },

  steps(newest) {
    const root = M.by("steps-of"), names = [...newest.keys()];
    if (root.dataset.names !== names.join()) {
      root.dataset.names = names.join();
      root.replaceChildren(...names.map((name) => M.el("div", { style: `--c: var(--${this.colour(name)})` }, M.el("h3", {}, name), M.el("canvas", { "data-of": name }))));
    }
    const all = [...newest.values()].flatMap((one) => one.step_us);
    const low = Math.min(1e5, ...all) / 1.3, high = Math.max(1e6, ...all) * 1.3, end = this.end(newest);
    for (const [name, one] of newest) {
      const [c, width, height] = M.canvas(root.querySelector(`[data-of="${name}"]`));
      const left = 58, bottom = height - 4;
      const x = (us) => left + (us / end) * (width - left - 8);
      const y = (us) => bottom - (Math.log(us / low) / Math.log(high / low)) * (bottom - 4);
      c.fillStyle = M.colour("bad"); c.globalAlpha = 0.13;
      const now = Math.max(one.end_us[one.end_us.length - 1] || 0, ...one.faults.map((fault) => fault.at_us + 3e5));  // draw a fault without an end up to this time
      for (const fault of one.faults) c.fillRect(x(fault.at_us), 0, x(fault.until_us === null ? now : fault.until_us) - x(fault.at_us), bottom);
      c.globalAlpha = 1; c.font = "12px system-ui"; c.textAlign = "right";
      for (let us = 10 ** Math.ceil(Math.log10(low)); us <= high; us *= 10) {
        c.strokeStyle = M.colour("line"); c.fillStyle = M.colour("soft");
        c.beginPath(); c.moveTo(left, y(us)); c.lineTo(width, y(us)); c.stroke();
        c.fillText(us >= 1e6 ? `${us / 1e6} s` : `${us / 1e3} ms`, left - 6, y(us) + 4);
      }
      c.fillStyle = M.colour(this.colour(name));
      one.step_us.forEach((us, n) => { const from = n ? one.end_us[n - 1] : one.end_us[n] - us, to = one.end_us[n]; c.fillRect(x(from), y(us), Math.max(1.5, x(to) - x(from) - 0.5), bottom - y(us)); });
    }
  },
};

M.training.start();
