/* Frames on the drawing of the fabric: a dot moves along a link for each frame, and a cross marks a lost frame. */
"use strict";

M.KINDS = ["data", "sent again", "acknowledgement", "probe"];

M.Motion = class {
  constructor(fabric) {
    this.fabric = fabric;
    this.batches = [];
    this.at = 0;
    this.target = 0;
    this.before = 0;
    this.pace = 0;
    this.marks = [];
  }

  /* ``sim`` of a page update: moves and ends of each transport's frames since the last update; times in ns. */
  take(sim) {
    this.pace = sim.pace;
    this.target = sim.t_ns;
    this.batches.push(sim);
    const keep = sim.t_ns - Math.max(20000, 2 * sim.pace);
    while (this.batches.length > 2 && this.batches[0].t_ns < keep) this.batches.shift();
    if (!this.running) { this.running = true; this.before = performance.now(); requestAnimationFrame((now) => this.step(now)); }
  }

  /* Show recorded packets once, within ``seconds``. */
  play(batch, begin, end, seconds) {
    this.batches = [batch];
    [this.at, this.target, this.pace] = [begin, end, (end - begin) / seconds];
    this.once = true;
    this.before = performance.now();
    if (!this.running) { this.running = true; requestAnimationFrame((now) => this.step(now)); }
  }

  forget() { this.batches = []; this.at = 0; for (const canvas of this.canvases()) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height); }

  canvases() { return this.fabric.root.querySelectorAll("canvas.motion"); }

  /* The drawing shows a time shortly before the newest page update, so that the dots move evenly. */
  step(now) {
    const passed = Math.min(100, now - this.before) * this.pace / 1000;
    const still = M.still();
    if (!still || now - this.before > 500) {
      this.before = now;
      if (this.once && this.at >= this.target) { this.once = false; this.forget(); this.running = false; return; }
      const ahead = this.once ? 0 : this.target - this.at;
      if (ahead < 0 || ahead > this.pace / 2) this.at = this.target - this.pace / 15;
      else this.at = Math.min(this.target, this.at + passed * (ahead > this.pace / 7 ? 1.3 : 1));
      this.draw(this.at);
    }
    if (this.at < this.target || this.batches.length) requestAnimationFrame((then) => this.step(then));
    else this.running = false;
  }

  draw(at) {
    this.drawn = (this.drawn || 0) + 1;
    const { fabric } = this;
    if (fabric.grouped) return;
    const boards = new Map();
    for (const canvas of this.canvases()) boards.set(Number(canvas.dataset.plane), M.board(canvas, fabric.width, fabric.height));
    const seen = M.colour("ink"), stays = 0.7 * this.pace;
    for (const batch of this.batches) {
      for (const [name, moves] of Object.entries(batch.moves)) {
        const colour = M.colour(name);
        for (const [, place, begin, end, kind] of moves) {
          if (begin > at || end < at) continue;
          const line = fabric.lines[place >> 1], c = line && boards.get(line.plane);
          if (!c) continue;
          const share = place & 1 ? (at - begin) / (end - begin) : 1 - (at - begin) / (end - begin);
          M.dot(c, line.x1 + (line.x2 - line.x1) * share, line.y1 + (line.y2 - line.y1) * share, kind, colour, seen);
        }
      }
      for (const [name, ends] of Object.entries(batch.ends)) for (const [, when, fate, place] of ends) {
        if (when > at || when < at - stays) continue;
        const line = fabric.lines[place >> 1], c = line && boards.get(line.plane);
        if (c) M.cross(c, line, place & 1, fate === 3 ? M.colour("warn") : M.colour("bad"), 1 - (at - when) / stays, M.colour(name));
      }
    }
    const newest = this.batches[this.batches.length - 1];
    if (newest) for (const [name, queues] of Object.entries(newest.queues || {})) for (const [place, wait] of queues) {
      const line = fabric.lines[place >> 1], c = line && boards.get(line.plane);
      if (!c) continue;
      const [x, y] = place & 1 ? [line.x1, line.y1] : [line.x2, line.y2];
      c.fillStyle = M.colour(name); c.globalAlpha = 0.35;
      c.beginPath(); c.arc(x, y, 5 + Math.min(14, 3 * Math.log2(1 + wait / 200)), 0, 7); c.fill(); c.globalAlpha = 1;
    }
  }
};

/* Clear a canvas that lies over a drawing of ``width`` by ``height``. Return its context in the drawing's units. */
M.board = (canvas, width, height) => {
  const [c, w, h] = M.canvas(canvas);
  const scale = Math.min(w / width, h / height);
  c.translate((w - width * scale) / 2, (h - height * scale) / 2);
  c.scale(scale, scale);
  return c;
};

M.dot = (c, x, y, kind, colour, edge) => {
  c.beginPath();
  if (kind === 2) { c.fillStyle = colour; c.globalAlpha = 0.55; c.arc(x, y, 1.8, 0, 7); c.fill(); c.globalAlpha = 1; return; }
  if (kind === 3) { c.strokeStyle = colour; c.lineWidth = 1.2; c.rect(x - 2.2, y - 2.2, 4.4, 4.4); c.stroke(); return; }
  c.fillStyle = colour;
  c.arc(x, y, kind === 1 ? 4.4 : 3.4, 0, 7);
  c.fill();
  if (kind === 1) { c.strokeStyle = edge; c.lineWidth = 1.3; c.stroke(); }
};

M.cross = (c, line, up, colour, share) => {
  const at = up ? 0.62 : 0.38, x = line.x1 + (line.x2 - line.x1) * at, y = line.y1 + (line.y2 - line.y1) * at;
  c.strokeStyle = colour; c.lineWidth = 2.2; c.globalAlpha = Math.max(0.15, share);
  c.beginPath(); c.moveTo(x - 5, y - 5); c.lineTo(x + 5, y + 5); c.moveTo(x + 5, y - 5); c.lineTo(x - 5, y + 5); c.stroke();
  c.globalAlpha = 1;
};

M.still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/* The packets around a fault as moves on the drawing. All hops take equal times, and a lost packet ends at the fault. */
M.movesOf = (data, where, name, links) => {
  const index = new Map(links.map(([link], n) => [link, n]));
  const whole = data.rows.filter((row) => row[5] !== null).map((row) => row[5] - row[0]);
  const usual = whole.length ? whole.sort((a, b) => a - b)[whole.length >> 1] : 100;
  const moves = [], ends = [];
  data.rows.forEach(([t, path, , fate, again, arrived], number) => {
    const way = (data.links && data.links[path]) || [];
    if (!way.length) return;
    const hop = (1000 * (arrived === null ? usual : arrived - t)) / way.length;
    const at = way.findIndex((link) => link === where || link.split(":").includes(where));
    const stop = fate === 1 ? (at < 0 ? way.length - 1 : at) : way.length - 1;
    for (let n = 0; n <= stop; n += 1) {
      const place = 2 * index.get(way[n]) + (n < way.length / 2 ? 1 : 0), begin = 1000 * t + n * hop;
      moves.push([number, place, begin, begin + hop, again ? 1 : 0]);
      if (fate === 1 && n === stop) ends.push([number, begin + hop, 1, place]);
    }
  });
  return { moves: { [name]: moves }, ends: { [name]: ends }, queues: {} };
};
