/* The frames (page updates) so far, and the bar to move in them. A recording has all frames at the start. A simulation
   adds frames, and the page shows the newest frame unless the viewer has gone back. */
"use strict";

M.Timeline = class {
  /* ``take`` shows a frame, ``forget`` clears the charts, ``hold`` stops and starts a simulation. If ``own`` is false, the
     viewer may not stop the simulation, only this page. */
  constructor(take, forget, { frames = [], hold = null, own = true, most = 4000 } = {}) {
    Object.assign(this, { take, forget, frames, hold, own, most, at: 0, speed: 1, playing: true });
    this.follows = Boolean(hold);
    this.due = frames.length ? frames[0].t_ms : 0;
  }

  /* The virtual or recorded time, ms, that passes in 1 ms of the viewer's time. */
  get rate() { const frame = this.frames[this.at]; return frame && frame.sim ? frame.sim.pace / 1e9 : 1; }

  /* A recording starts to play, unless the browser asks for reduced motion. */
  open() {
    M.by("replay-bar").hidden = false;
    if (!this.hold && M.still()) this.playing = false;
    M.by("seek").oninput = () => this.seek(Number(M.by("seek").value));
    M.by("play").onclick = () => this.toggle();
    M.by("speed").onchange = (event) => { this.speed = Number(event.target.value); };
    M.by("now").onclick = () => this.toEnd();
    this.before = performance.now();
    if (this.frames.length) this.take(this.frames[0]);
    this.marks();
    if (this.frames.length) this.show();
    requestAnimationFrame((now) => this.step(now));
  }

  push(frame) {
    const newest = this.frames[this.frames.length - 1];
    if (newest && frame.t_ms < newest.t_ms) { this.frames = []; this.at = 0; this.follows = true; this.forget(); }  // the simulation began again
    this.frames.push(frame);
    if (this.frames.length > this.most) { this.frames.splice(0, this.most / 8); this.at = Math.max(0, this.at - this.most / 8); }
    if (this.follows) {
      this.at = this.frames.length - 1;
      if (frame.sim && frame.sim.paused !== undefined) this.playing = !frame.sim.paused;  // any owner may have stopped it
      this.take(frame);
    }
    this.show();
  }

  /* Go to a frame. Show the frames shortly before it again, so that the charts are full. */
  seek(to) {
    const at = Math.max(0, Math.min(this.frames.length - 1, to));
    this.follows = Boolean(this.hold) && at === this.frames.length - 1;
    if (this.hold && !this.follows) this.hold(true);
    this.forget();
    const begin = this.frames[at] ? this.frames[at].t_ms - M.SHOWN_MS : 0;
    let from = at;
    while (from > 0 && this.frames[from - 1].t_ms > begin && at - from < 400) from -= 1;
    for (let n = 0; n < from; n += 1) M.app.story.take(this.frames[n], M.ratesOf(this.frames[n]));  // who has been silent since when
    for (let n = from; n <= at; n += 1) this.take(this.frames[n]);
    this.at = at;
    this.due = this.frames[at] ? this.frames[at].t_ms : 0;
    if (this.hold && !this.follows) this.playing = false;
    this.show();
  }

  toggle() {
    this.playing = !this.playing;
    if (!this.own && this.follows) { this.playing = false; this.follows = false; }
    if (this.hold) {
      if (this.follows) this.hold(!this.playing);
      this.due = this.frames[this.at] ? this.frames[this.at].t_ms : 0;
    }
    this.show();
  }

  toEnd() { this.seek(this.frames.length - 1); this.playing = true; this.follows = Boolean(this.hold); if (this.hold) this.hold(false); this.show(); }

  /* The frames at which a fault was made or undone: [index, the frame]. */
  chapters() {
    const found = [];
    this.frames.forEach((frame, n) => { if (n && Object.keys(frame.faults).join() !== Object.keys(this.frames[n - 1].faults).join()) found.push([n, frame]); });
    return found;
  }

  chapter(step) {
    const numbers = this.chapters().map(([n]) => Math.max(0, n - 5));
    const to = step > 0 ? numbers.find((n) => n > this.at + 5) : numbers.filter((n) => n < this.at - 5).pop();
    if (to !== undefined) this.seek(to);
  }

  marks() {
    const root = M.by("chapters"), last = Math.max(1, this.frames.length - 1);
    root.replaceChildren(...this.chapters().map(([n, frame]) => {
      const before = this.frames[n - 1].faults, made = Object.keys(frame.faults).find((where) => !(where in before));
      const text = made ? `${frame.faults[made].text}: ${M.words(made)}` : "restored";
      return M.el("button", { class: made ? "made" : "undone", style: `left: ${(100 * n) / last}%`, title: text, "aria-label": `go to: ${text}`, onclick: () => this.seek(Math.max(0, n - 5)) });
    }));
    this.marked = this.frames.length;
  }

  show() {
    const seek = M.by("seek"), frame = this.frames[this.at];
    seek.max = this.frames.length - 1;
    if (document.activeElement !== seek || this.playing) seek.value = this.at;
    M.text(M.by("play"), this.playing ? "❚❚" : "▶");
    M.by("play").setAttribute("aria-label", this.playing ? "pause" : "play");
    M.by("now").hidden = !this.hold || this.follows;
    if (frame) M.text(M.by("clock"), M.time(1000 * (frame.t_ms - (this.hold ? 0 : this.frames[0].t_ms))));
    if (this.hold && Math.abs(this.frames.length - (this.marked || 0)) > 15) this.marks();
  }

  step(now) {
    const passed = now - this.before;
    this.before = now;
    if (this.playing && !this.follows && this.frames.length) {
      const here = this.frames[this.at];
      this.due = Math.max(this.due, here.t_ms) + Math.min(passed, 500) * this.speed * this.rate;
      const next = this.frames[this.at + 1];
      if (next && next.t_ms - here.t_ms > 3000 * this.rate) this.due = next.t_ms;  // skip a time without frames
      while (this.at + 1 < this.frames.length && this.frames[this.at + 1].t_ms <= this.due) this.take(this.frames[++this.at]);
      if (this.at + 1 >= this.frames.length) {
        if (this.hold) this.toEnd();
        else { this.at = 0; this.due = this.frames[0].t_ms; this.forget(); }
      }
      this.show();
    }
    requestAnimationFrame((then) => this.step(then));
  }
};
