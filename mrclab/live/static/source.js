/* The sources of frames (page updates): the running testbed, or a recording in this file. Both have the same interface. */
"use strict";

M.Live = class {
  async open(take, over) {
    const answer = await fetch("about");
    if (!answer.ok) throw new Error((await answer.json()).error);
    this.about = await answer.json();
    if (this.about.sim) {
      const hold = this.about.owner ? (paused) => this.ask("pace", { paused }).catch(() => null) : () => null;
      this.timeline = new M.Timeline(take, () => M.app.forget(), { hold, own: this.about.owner });
      setTimeout(() => this.timeline.open());
      take = (frame) => this.timeline.push(frame);
    }
    const listen = () => {
      const stream = new EventSource("events?changes");  // after the first frame, only the parts that changed
      let whole = {};
      stream.onmessage = (event) => {
        whole = { ...whole, ...JSON.parse(event.data) };
        if (whole.over) { stream.close(); over(whole.over); } else take(whole);
      };
      stream.onerror = async () => {
        over(null);
        if (stream.readyState !== EventSource.CLOSED) return;  // the browser tries again itself
        const why = await this.refusal();
        if (why) over(why, ""); else setTimeout(listen, 2000);
      };
      stream.onopen = () => over(false);
    };
    this.before(take).finally(listen);
    return this.about;
  }

  /* The reason why the server refuses this page, for instance a new server with other tokens; null if it does not. */
  async refusal() {
    try {
      const answer = await fetch("about");
      return answer.status === 403 ? (await answer.json()).error : null;
    } catch { return null; }
  }

  /* Load the frames from before this page was opened, so that the charts are full at the start. */
  async before(take) {
    try {
      let whole = {};
      for (const part of (await (await fetch("recent")).json()).frames) take((whole = { ...whole, ...part }));
    } catch { /* the charts then begin now */ }
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
    let whole = {};
    const frames = data.frames.map((part) => (whole = { ...whole, ...part }));
    this.timeline = new M.Timeline(take, () => M.app.forget(), { frames });
    setTimeout(() => this.timeline.open());
    return this.about;
  }

  async ask() { throw new Error("this is a recording: nothing can be changed in it"); }

  async packets(card, transport) {
    const found = this.data.packets[`${card}/${transport}`];
    if (!found) throw new Error("the recording has no packets of this fault");
    return found;
  }
};

/* Ask for a title and notes. Then the server makes the file, which takes some time. */
M.saveReplay = (dialog) => {
  const title = M.el("input", { name: "title", "aria-label": "title", placeholder: "title" });
  const notes = M.el("textarea", { name: "notes", rows: 4, "aria-label": "notes", placeholder: "notes: what one sees here" });
  const save = M.el("button", { class: "strong", onclick: async () => {
    save.disabled = true;
    M.text(save, "preparing");
    try {
      const answer = await fetch(`replay.html?${new URLSearchParams({ title: title.value, notes: notes.value })}`);
      if (!answer.ok) throw new Error((await answer.json()).error);
      const link = M.el("a", { href: URL.createObjectURL(await answer.blob()), download: "mrclab-replay.html" });
      link.click();
      dialog.close();
    } catch (error) { M.app.say(error.message); }
    save.disabled = false;
    M.text(save, "Save");
  } }, "Save");
  dialog.replaceChildren(M.el("h3", {}, "Save what was seen as one HTML file"), M.el("p", {}, title), M.el("p", {}, notes), M.el("div", { class: "row" }, save, " ", M.el("button", { onclick: () => dialog.close() }, "Cancel")));
  dialog.showModal();
};
