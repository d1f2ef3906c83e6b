/* Help for a talk: one sentence on the last event, the time without traffic, and keys for the presenter. */
"use strict";

/* The rate of each transport in a frame. */
M.ratesOf = (frame) => Object.fromEntries(Object.entries(frame.transports).map(([name, one]) => [name, one.flows.reduce((sum, flow) => sum + flow[2], 0)]));

/* Says in a sentence which transports deliver nothing (are silent) during a fault. */
M.Story = class {
  constructor(labels) { this.labels = labels; this.forget(); }

  forget() { this.usual = {}; this.silent = {}; this.was = {}; this.rates = {}; this.told = ""; }

  name(one) { return (this.labels[one] || one).split(",")[0]; }

  take(frame, rates) {
    this.rates = rates;
    for (const [name, rate] of Object.entries(rates)) {
      const usual = this.usual[name] || 0;
      if (!Object.keys(frame.faults).length || !usual) this.usual[name] = Math.max(rate, 0.9 * usual);
      const quiet = usual > 0 && rate < 0.02 * usual;
      if (quiet && !(name in this.silent)) this.silent[name] = frame.t_ms;
      if (!quiet && name in this.silent) { this.was[name] = frame.t_ms - this.silent[name]; delete this.silent[name]; }
    }
    const newest = frame.cards[frame.cards.length - 1];
    if (newest && newest.number !== this.number) { this.number = newest.number; if (!newest.undone) this.was = {}; }
  }

  /* Parts of the sentence: [words, their transport or null, true if the words have a time that still grows]. */
  parts(frame) {
    const faults = Object.entries(frame.faults), active = faults.map(([, fault]) => fault.card), broken = faults.length;
    const other = faults.map(([where, fault]) => ({ where, text: fault.text, results: {} })).pop();  // another program's fault has no card
    const card = frame.cards.filter((one) => active.includes(one.number)).pop() || other || frame.cards[frame.cards.length - 1];
    const silent = (name) => name in this.silent;
    if (!card) return Object.keys(this.silent).map((name) => [`${this.name(name)} has been silent for ${M.time(1000 * (frame.t_ms - this.silent[name]))}. `, name, true]);
    const found = [[`${card.undone ? "Restored" : card.text[0].toUpperCase() + card.text.slice(1)}: ${M.words(card.where)}. `, null, false]];
    for (const [name, one] of Object.entries(frame.transports)) {
      const r = card.results[name], who = this.name(name), gone = one.gave_up || (r && r.gave_up);
      if (silent(name)) {
        found.push([`${who} has been silent for ${M.time(1000 * (frame.t_ms - this.silent[name]))}`, name, true]);
        if (gone) found.push([" and gave up: its job would have ended", name, false]);
        found.push([". ", name, false]);
      } else if (broken && !this.usual[name] && !this.rates[name]) {
        found.push([`${who} is silent${gone ? " and gave up: its job would have ended" : ""}. `, name, false]);  // since before the first frame here
      } else if (r && r.felt && r.recovered_us !== null && !(this.was[name] && 1000 * this.was[name] > 2 * r.recovered_us)) {
        found.push([`${who} lost ${M.count(r.lost)} ${r.lost === 1 ? "packet" : "packets"} and was whole after ${M.time(r.recovered_us)}. `, name, false]);
      } else if (this.was[name]) {
        found.push([`${who} was silent for ${M.time(1000 * this.was[name])}${gone ? " and gave up: its job would have ended" : ""}. `, name, false]);
      } else if (r && !r.felt && r.recovered_why) found.push([`${who} was not hit. `, name, false]);
      else if (r && r.felt) found.push([`${who} is losing packets. `, name, false]);
    }
    return found;
  }

  show(root, announce, frame) {
    const parts = this.parts(frame);
    root.hidden = false;
    if (!parts.length) M.text(root, "Nothing is broken: cut a link, and watch who notices.");
    else {
      const key = parts.map(([words]) => words).join("");
      if (root.dataset.key !== key) { root.dataset.key = key; root.replaceChildren(...parts.map(([words, name, counts]) => M.el(counts ? "strong" : "span", name ? { style: `color: var(--${name})` } : {}, words))); }
    }
    // A screen reader gets only changes, not the growing times.
    const said = parts.map(([words, name, counts]) => (counts ? `${this.name(name)} is silent` : words)).join("");
    if (said !== this.told && said) { this.told = said; announce.textContent = said; }
  }
};

/* The keys of a presenter or a remote control: PageDown does the next step of the tour, PageUp goes one step back, F is full
   screen, X cuts a link of RoCEv2's path. In a replay, N goes to the next fault and Shift-N to the previous fault. */
M.presenterKey = (event, app) => {
  const { key } = event;
  const timeline = app.source && app.source.timeline;
  if (key === "f" || key === "F") { if (document.fullscreenElement) document.exitFullscreen(); else document.documentElement.requestFullscreen().catch(() => null); return true; }
  if ((key === "n" || key === "N") && timeline) { timeline.chapter(event.shiftKey ? -1 : 1); return true; }
  if (key === " " && timeline && [document.body, M.by("seek")].includes(event.target)) { timeline.toggle(); return true; }
  if (window.RECORDING) return false;
  if (!app.about.owner) return false;
  if (key === "PageDown" || key === "PageUp") {
    if (M.by("tour").hidden) { if (key === "PageDown") M.by("tour-button").click(); return true; }
    const go = M.by("tour-go"), next = M.by("tour-next"), back = M.by("tour-back");
    if (key === "PageUp") { if (back) back.click(); }
    else if (go && !go.dataset.done) go.click();
    else if (next) next.click();
    return true;
  }
  if (key === "x" || key === "X") { M.cutUsed(app.actions()); return true; }
  return false;
};

/* Cut a link of RoCEv2's path, or of MRC's if there is no RoCEv2. */
M.cutUsed = async (actions) => {
  const link = await M.used(actions);
  if (link) await actions.fault({ kind: "blackhole", where: link });
};

/* The transport whose path is cut: RoCEv2, or MRC if there is no RoCEv2. */
M.hit = (actions) => (actions.sends("rocev2") ? "rocev2" : "mrc");

/* Call ``found`` until it returns a value, and return this value. After ``seconds``, return null. */
M.until = async (found, seconds) => {
  for (let turn = 0; turn < 10 * seconds; turn += 1) {
    const one = await found();
    if (one) return one;
    await new Promise((done) => setTimeout(done, 100));
  }
  return null;
};

/* A link that the transport uses. After a change of the traffic, wait until the transport uses a link. */
M.used = (actions) => M.until(() => actions.used(M.hit(actions)), 6);

/* Undo all faults, wait until the transport delivers again, and return a link that it uses. Without this wait, the
   transport could still be silent, and a new fault would have no effect. */
M.mended = async (actions) => {
  await actions.undo(null);
  await actions.usualTraffic();
  const state = () => actions.state(M.hit(actions)) || { sent: 0, bps: 0 }, before = state().sent;
  await M.until(() => state().bps > 0 && Math.abs(state().sent - before) > 8, 30);
  return M.used(actions);
};
