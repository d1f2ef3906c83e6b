/* The page: it shows the frames (page updates) of its source, and sends the viewer's requests to the source. */
"use strict";

M.app = {
  history: [], steps: {}, paths: {}, shownPair: null, chosen: null, cardsShown: "",

  async start() {
    const root = document.documentElement;
    const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
    root.dataset.theme = stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    M.by("theme-button").onclick = () => {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a page opened from a file may have no storage */ }
      this.redraw();
    };
    addEventListener("resize", () => this.redraw());
    const replay = Boolean(window.RECORDING);
    this.source = replay ? new M.Replay() : M.Play ? new M.Play() : new M.Live();
    try {
      this.about = await this.source.open((frame) => this.take(frame), (why, mend) => this.over(why, mend));
    } catch (error) {
      this.say(error.message);
      return;
    }
    const { fabric, target, owner, labels } = this.about, { about } = this;
    M.takeLooks(about.looks);
    this.story = new M.Story(labels);
    M.by("mode").textContent = replay ? "replay" : M.Play ? "play" : owner ? "live" : "live, watching";
    M.by("where").textContent = `${fabric.name}: ${fabric.planes} planes, ${fabric.switches.length} switches, ${fabric.hosts.length} hosts, ${about.sim ? "simulated" : `on ${target}`}`;
    if (about.title) { document.title = about.title; M.by("where").textContent = about.title; }
    if (about.notes) { M.by("notes").hidden = false; M.by("notes").textContent = about.notes; }
    for (const node of document.querySelectorAll(".owner")) node.hidden = !owner;
    for (const node of document.querySelectorAll(".live")) node.hidden = replay || Boolean(M.Play);
    M.by("tour-button").hidden = !owner;
    this.fabric = new M.Fabric(M.by("fabric"), fabric, (chosen) => this.choose(chosen));
    this.motion = new M.Motion(this.fabric);
    M.by("pace").onchange = (event) => this.attempt(() => this.source.ask("pace", { ns_per_s: Number(event.target.value) }));
    this.evs = new Map();
    for (const [pair, list] of Object.entries(this.about.evs)) this.know(pair, list);
    M.by("flow").onchange = (event) => this.attempt(async () => { this.paths = {}; await this.source.ask("show", { flow: Number(event.target.value) }); });
    M.by("undo-button").onclick = () => this.undo(null);
    M.by("save-button").onclick = () => M.saveReplay(M.by("save"));
    M.by("tour-button").onclick = () => M.tour(M.by("tour"), this.actions());
    M.by("traffic-button").onclick = () => { const form = M.by("traffic"); form.hidden = !form.hidden; if (!form.hidden) M.trafficForm(form, this.about.plan, labels, this.about.sim, (plan) => this.traffic(plan)); };
    document.addEventListener("keydown", (event) => this.key(event));
    let width = 0;
    new ResizeObserver(() => { const now = M.by("fabric").clientWidth; if (Math.abs(now - width) > 40) { width = now; this.fabric.build(); if (this.frame) this.fabric.update(this.frame); } }).observe(M.by("fabric"));
  },

  actions() {
    return {
      fault: (fault) => this.fault(fault), undo: (where) => this.undo(where),
      traffic: (plan) => this.traffic({ ...this.about.plan, ...plan }), usual: () => this.about.usual,
      sends: (name) => this.about.plan.transports.includes(name),
      state: (name) => { const one = this.frame && this.frame.transports[name]; return one ? { sent: one.sent, bps: one.flows.reduce((sum, flow) => sum + flow[2], 0) } : null; },
      used: async (name) => { try { return (await this.source.ask(`used/${name}`)).link; } catch { return null; } },
      usualTraffic: () => { const { plan, usual } = this.about; return ["pattern", "transports", "rate_bps"].every((key) => `${plan[key]}` === `${usual[key]}`) ? null : this.traffic({ ...plan, ...usual }); },
      buttons: (place) => this.about.buttons[place] || [],
      close: () => this.closeMenu(),
      linksOf: (ev) => this.linksOf(ev),
      counters: window.RECORDING ? null : (node) => this.source.ask(`counters/${node}`).catch(() => null),
    };
  },

  linksOf(ev) {
    const pair = this.pair();
    const found = pair && this.evs.get(pair) && this.evs.get(pair).get(ev);
    return found ? found.links : null;
  },

  /* The hosts of the flow whose paths are shown, as "source>target". */
  pair() {
    const first = this.frame && Object.values(this.frame.transports)[0];
    const flow = first && first.flows[this.frame.shown || 0];
    return flow ? `${flow[0]}>${flow[1]}` : null;
  },

  /* Ask the server for the paths of a pair of hosts. A recording only has the paths that a viewer looked at. */
  async learn(pair) {
    if (this.evs.has(pair) || window.RECORDING) return;
    this.evs.set(pair, new Map());
    try { this.know(pair, (await this.source.ask(`evs/${pair.replace(">", "/")}`)).evs); } catch { /* the page then shows EVs without the names of paths */ }
  },

  know(pair, list) { this.evs.set(pair, new Map(list.map(([ev, plane, t1, links]) => [ev, { plane, t1, links }]))); },

  flowChoice() {
    const first = Object.values(this.frame.transports)[0];
    const names = first ? first.flows.map(([a, b]) => `${a} to ${b}`) : [];
    const select = M.by("flow");
    const key = names.join();
    select.hidden = names.length < 2 || !this.about.owner;
    if (select.dataset.key !== key) {
      select.dataset.key = key;
      select.replaceChildren(...names.map((name, n) => M.el("option", { value: n }, name)));
    }
    if (document.activeElement !== select) select.value = this.frame.shown || 0;
  },

  /* Show that this is a simulation, and how much slower than real time it is. */
  tell() {
    M.by("sim").hidden = false;
    M.text(M.by("slower"), `simulated, ${M.slower(this.pace)}${this.about.owner ? "" : `: ${M.pace(this.pace)}`}`);
    const select = M.by("pace");
    select.hidden = !this.about.owner;
    if (!select.options.length) select.append(...this.about.sim.paces.map((pace) => M.el("option", { value: pace }, M.pace(pace))));
    select.value = this.pace;
  },

  forget() { if (this.motion) this.motion.forget(); if (this.story) this.story.forget(); this.history = []; this.steps = {}; this.paths = {}; this.cardsShown = ""; this.known = null; },

  take(frame) {
    this.frame = frame;
    if (frame.sim) {
      if (frame.sim.pace !== this.pace) { this.pace = frame.sim.pace; M.span(this.pace / 1e9); this.tell(); }
      this.motion.take(frame.sim);
    }
    const rates = M.ratesOf(frame), count = Object.keys(frame.faults).length;
    const fault = this.known === undefined || this.known === null || count === this.known ? null : count > this.known ? "made" : "undone";
    this.known = count;
    this.story.take(frame, rates);
    this.history.push({ t_ms: frame.t_ms, rates, fault });
    while (this.history.length > 2 && this.history[0].t_ms < frame.t_ms - 1.03 * M.SHOWN_MS) this.history.shift();
    for (const [name, one] of Object.entries(frame.transports)) {
      const kept = (this.steps[name] = this.steps[name] || []);
      for (const step of one.steps || []) kept.push([frame.t_ms, ...step]);
      while (kept.length && kept[0][0] < frame.t_ms - M.SHOWN_MS) kept.shift();
    }
    const pair = this.pair();
    if (pair !== this.shownPair) { this.shownPair = pair; this.paths = {}; if (pair) this.learn(pair); }
    for (const [name, rows] of Object.entries(frame.paths)) this.note(name, rows, frame.t_ms);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.show(); });
  },

  note(name, rows, t_ms) {
    const kept = (this.paths[name] = this.paths[name] || { history: [], before: new Map(), t_ms: null });
    const now = new Map();
    for (const [ev, , state, active, sent, , lost] of rows) {
      const old = kept.before.get(ev) || [sent, lost];
      now.set(ev, { state, active, sent: Math.max(0, sent - old[0]), lost: Math.max(0, lost - old[1]) });
      kept.before.set(ev, [sent, lost]);
    }
    if (kept.t_ms !== null && t_ms > kept.t_ms) kept.history.push({ t_ms, took_ms: t_ms - kept.t_ms, evs: now });
    kept.t_ms = t_ms;
    if (kept.history.length > (this.pace ? 200 : 120)) kept.history.shift();
  },

  show() {
    const { frame, about } = this;
    if (!frame) return;
    M.numbers(M.by("numbers"), frame);
    M.drawRates(M.by("rates"), this.history, about.labels);
    const stepping = Object.values(this.steps).some((kept) => kept.length);
    M.by("reduce").hidden = !stepping;
    if (stepping) M.drawSteps(M.by("steps"), M.by("slowest"), this.steps, frame.t_ms, about.labels);
    this.story.show(M.by("sentence"), M.by("announce"), frame);
    this.fabric.update(frame);
    this.flowChoice();
    this.turn = (this.turn || 0) + 1;
    if (window.RECORDING || this.turn % 2) this.strips();  // drawing takes long: only five times a second
    M.by("beside").hidden = !frame.beside || Boolean(window.RECORDING);
    M.by("mapper").hidden = Boolean(window.RECORDING || about.sim) && !frame.mapper;
    const mapper = JSON.stringify([frame.mapper, frame.faults]);
    if (mapper !== this.mapperShown) {
      this.mapperShown = mapper;
      M.mapper(M.by("mapper"), frame.mapper || null, frame.faults, about.owner ? (on) => this.attempt(() => this.source.ask("mapper", { on })) : null);
    }
    const undo = about.owner ? (where) => this.undo(where) : null;
    const key = JSON.stringify([frame.faults, frame.cards]);
    if (key === this.cardsShown) return;
    this.cardsShown = key;
    M.active(M.by("active"), frame, undo);
    const cards = [...frame.cards].reverse().map((card) => M.card(card, about.labels, (c, name) => this.packets(c, name)));
    M.by("cards").replaceChildren(...(cards.length ? cards : [M.el("p", { class: "legend" }, window.RECORDING ? "What a fault did to each transport appears here." : "Click a link of the fabric and cut it: what it did to each transport appears here.")]));
  },

  /* Draw the present frame again, because no new frame may arrive: the viewer can stop the time. */
  redraw() {
    if (!this.frame || this.redrawing) return;
    this.redrawing = true;
    requestAnimationFrame(() => { this.redrawing = false; this.show(); this.strips(); this.motion.draw(this.motion.at); });
  },

  strips() {
    const root = M.by("strips");
    const names = Object.keys(this.frame.paths).filter((name) => this.frame.paths[name].length);
    const key = names.join();
    if (root.dataset.key !== key) {
      root.dataset.key = key;
      root.replaceChildren(...names.map((name) => M.el("div", { class: "strips", style: `--c: var(--${name})` }, M.el("h3", {}, this.about.labels[name]), M.el("canvas", { "data-strip": name }))));
    }
    const pair = this.pair();
    M.by("paths-hint").textContent = pair ? `${pair.replace(">", " to ")}, over ${M.time(1000 * M.STRIP_MS).replace(".00", "")}: green in use, amber skipped, red assumed bad; marks are losses` : "";
    for (const name of names) {
      const rows = this.frame.paths[name].map((row) => {
        const known = this.evs.get(pair) && this.evs.get(pair).get(row[0]);
        return [row[0], known ? `plane ${known.plane}` + (known.t1 === null ? "" : `, T1 ${known.t1}`) : `EV 0x${row[0].toString(16)}`, row[1]];
      });
      rows.sort((a, b) => a[2] - b[2] || a[0] - b[0]);
      M.drawStrips(root.querySelector(`[data-strip="${name}"]`), this.paths[name] ? this.paths[name].history : [], rows);
    }
  },

  choose(chosen) {
    if (!this.frame) return;
    this.chosen = chosen;
    M.menu(M.by("menu"), chosen, this.frame, this.about.owner, this.actions());
    const first = M.by("menu").querySelector(".row button");
    if (first) first.focus({ preventScroll: true });
  },

  /* Close the menu, and return the keyboard focus to the element that had it before. */
  closeMenu() {
    M.by("menu").hidden = true;
    if (this.chosen && this.chosen.from && this.chosen.from.isConnected) this.chosen.from.focus({ preventScroll: true });
    this.chosen = null;
  },

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || (["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "range")) return;
    if (document.querySelector("dialog[open]")) return;  // the dialog has its own keys: Escape closes only the dialog, not the tour
    if (event.key === "Escape") { this.closeMenu(); for (const id of ["tour", "traffic"]) M.by(id).hidden = true; return; }
    const open = this.chosen && !M.by("menu").hidden;
    if (!open && M.presenterKey(event, this)) { event.preventDefault(); return; }
    if (!this.about.owner) return;
    if (event.key === "u") { this.undo(null); return; }
    if (!this.chosen || M.by("menu").hidden) return;
    const found = this.about.buttons[this.chosen.place].find(([key]) => key === event.key);
    if (found) this.fault({ ...found[2], where: this.chosen.where });
  },

  async attempt(work) {
    try { return await work(); } catch (error) { this.say(error.message); return null; }
  },

  async fault(fault) { this.closeMenu(); return this.attempt(() => this.source.ask("fault", fault)); },
  async undo(where) { this.closeMenu(); return this.attempt(() => this.source.ask("restore", { where })); },
  async traffic(plan) { this.forget(); return this.attempt(async () => { await this.source.ask("traffic", plan); this.about.plan = { ...this.about.plan, ...plan }; }); },

  async packets(card, name) {
    const data = await this.attempt(() => this.source.packets(card.number, name));
    if (!data) return;
    const dialog = M.by("packets");
    const canvas = M.el("canvas", {});
    const last = Math.max(...data.rows.map((row) => row[0]));
    const first = Math.min(...data.rows.map((row) => row[0]));
    const draw = (until) => M.drawPackets(canvas, data, until);
    const slow = M.el("button", { onclick: () => {
      const begun = performance.now(), every = M.still() ? 1000 : 0;  // for reduced motion, only six pictures
      let drawn = -Infinity;
      const step = (now) => { const share = (now - begun) / 6000; if (share >= 1 || now - drawn >= every) { drawn = now; draw(first + (last - first) * share); } if (share < 1 && dialog.open) requestAnimationFrame(step); };
      requestAnimationFrame(step);
    } }, "Slow motion");
    dialog.replaceChildren(M.el("h3", {}, `${M.words(card.where)}, ${card.text}: ${this.about.labels[name]}, packet by packet`), canvas,
      M.el("p", { class: "legend" }, "A bar is a packet sent on that path; a cross one that was lost; a ring one sent again. Times since the fault."),
      M.el("div", { class: "row" }, slow, " ", !this.frame.sim && data.links && M.el("button", { onclick: () => { dialog.close(); this.motion.play(M.movesOf(data, card.where, name, this.about.fabric.links), 1000 * first, 1000 * last, 8); } }, "On the fabric"), " ", M.el("button", { onclick: () => dialog.close() }, "Close")));
    dialog.showModal();
    draw(Infinity);
    const redraw = () => { if (dialog.open) draw(Infinity); else removeEventListener("resize", redraw); };
    addEventListener("resize", redraw);
  },

  say(text, plain = false) {
    const notice = M.by("notice");
    notice.textContent = text;
    notice.classList.toggle("plain", plain);
    notice.hidden = false;
    clearTimeout(this.saying);
    if (!this.ended) this.saying = setTimeout(() => { notice.hidden = true; }, 6000);
  },

  over(why, mend = ": start 'mrclab live' again") {
    if (why === false) { if (this.lost) { M.by("notice").hidden = true; this.lost = false; } return; }
    if (why === null) { if (!this.ended) { this.lost = true; M.by("notice").textContent = "no answer from the testbed: trying again"; M.by("notice").hidden = false; } return; }
    this.ended = true;
    this.say(`${why}${mend}`);
  },
};

M.app.start();
