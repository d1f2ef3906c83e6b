/* Where frames come from: the running testbed, or a recording inside this file. Both have the same interface. */
"use strict";

M.Live = class {
  async open(take, over) {
    const answer = await fetch("about");
    if (!answer.ok) throw new Error((await answer.json()).error);
    this.about = await answer.json();
    const listen = () => {
      const stream = new EventSource("events?changes");  // after the first, what is not that of the frame before
      let whole = {};
      stream.onmessage = (event) => {
        whole = { ...whole, ...JSON.parse(event.data) };
        if (whole.over) { stream.close(); over(whole.over); } else take(whole);
      };
      stream.onerror = () => over(null);
      stream.onopen = () => over(false);
    };
    listen();
    return this.about;
  }

  async ask(path, body) {
    const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const answer = await fetch(path, options);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }

  packets(card, transport) { return this.ask(`packets/${card}/${transport}`); }
};

M.Replay = class {
  async open(take) {
    const bytes = Uint8Array.from(atob(window.RECORDING), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const data = JSON.parse(await new Response(stream).text());
    this.data = data;
    this.about = { ...data.about, owner: false, plan: null };
    this.take = take;
    let whole = {};
    this.frames = data.frames.map((part) => (whole = { ...whole, ...part }));
    this.at = 0;
    this.speed = 1;
    this.playing = true;
    setTimeout(() => { this.bar(); this.run(); });
    return this.about;
  }

  bar() {
    M.by("replay-bar").hidden = false;
    const seek = M.by("seek");
    seek.max = this.frames.length - 1;
    seek.oninput = () => { M.app.forget(); const from = Math.max(0, Number(seek.value) - 200); for (let n = from; n <= Number(seek.value); n += 1) this.take(this.frames[n]); this.at = Number(seek.value); };
    M.by("play").onclick = () => { this.playing = !this.playing; M.by("play").textContent = this.playing ? "❚❚" : "▶"; };
    M.by("speed").onchange = (event) => { this.speed = Number(event.target.value); };
  }

  run() {
    let before = performance.now(), due = this.frames.length ? this.frames[0].t_ms : 0;
    const step = (now) => {
      if (this.playing && this.frames.length) {
        due = Math.max(due, this.frames[this.at].t_ms) + (now - before) * this.speed;
        if (due - this.frames[this.at].t_ms > 3000) due = this.frames[this.at].t_ms + 100;
        while (this.at + 1 < this.frames.length && this.frames[this.at + 1].t_ms <= due) this.take(this.frames[++this.at]);
        if (this.at + 1 >= this.frames.length) { this.at = 0; due = this.frames[0].t_ms; M.app.forget(); }
        M.by("seek").value = this.at;
        M.by("clock").textContent = `${((this.frames[this.at].t_ms - this.frames[0].t_ms) / 1000).toFixed(1)} s`;
      }
      before = now;
      requestAnimationFrame(step);
    };
    if (this.frames.length) this.take(this.frames[0]);
    requestAnimationFrame(step);
  }

  async ask() { throw new Error("this is a recording: nothing can be changed in it"); }

  async packets(card, transport) {
    const found = this.data.packets[`${card}/${transport}`];
    if (!found) throw new Error("the recording has no packets of this fault");
    return found;
  }
};
