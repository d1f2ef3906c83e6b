/* Charts on canvases: delivered rates, paths of a queue pair, and a recovery packet by packet. */
"use strict";

/* The time spans of the charts in ms of the frames' time: 20 s, for paths 10 s. In a simulation, they are the viewer's seconds. */
M.span = (rate) => { M.SHOWN_MS = 20000 * rate; M.STRIP_MS = 10000 * rate; M.GAP_MS = 1500 * rate; };
M.span(1);

/* The looks of the transports, by name: the colour (a CSS property of the page) and the dashes. */
M.LOOKS = {};
M.takeLooks = (looks) => {
  M.LOOKS = looks;
  for (const [name, look] of Object.entries(looks)) document.documentElement.style.setProperty(`--${name}`, `var(--${look.tone})`);
};
M.dash = (name) => (M.LOOKS[name] ? M.LOOKS[name].dash : []);

/* The marks of an axis: 0 and at most four round values. The last mark is not less than the largest value. */
M.ticks = (largest) => {
  const power = 10 ** Math.floor(Math.log10(largest / 4));
  const step = power * [1, 2, 2.5, 5, 10].find((one) => one * power * 4 >= largest);
  return [...Array(Math.ceil(largest / step - 1e-9) + 1).keys()].map((n) => n * step);
};

M.drawRates = (canvas, history, labels) => {
  const [c, width, height] = M.canvas(canvas);
  if (history.length < 2) return;
  const end = history[history.length - 1].t_ms, begin = end - M.SHOWN_MS;
  const left = Math.round(6.2 * M.size()), bottom = height - Math.max(20, Math.round(1.4 * M.size())), thick = Math.max(1, M.size() / 16);
  const ticks = M.ticks(Math.max(1e6, ...history.flatMap((h) => Object.values(h.rates))));
  if (height < 110) ticks.splice(1, ticks.length - 2);
  const most = 1.05 * ticks[ticks.length - 1];
  const x = (t) => left + ((t - begin) / M.SHOWN_MS) * (width - left - 6);
  const y = (v) => bottom - (v / most) * (bottom - 6);
  c.font = M.font(13);
  c.fillStyle = M.colour("soft");
  c.strokeStyle = M.colour("line");
  c.lineWidth = 1;
  for (const value of ticks) {
    c.beginPath(); c.moveTo(left, y(value)); c.lineTo(width, y(value)); c.stroke();
    c.textAlign = "right"; c.fillText(value ? M.rate(value).replace(".0 ", " ") : "0", left - 5, y(value) + 4);
  }
  c.textAlign = "center";
  for (let ago = M.SHOWN_MS / 4; ago < 0.9 * M.SHOWN_MS; ago += M.SHOWN_MS / 4) c.fillText(`-${M.time(1000 * ago).replace(".00", "")}`, x(end - ago), height - 4);
  for (const h of history) {
    if (!h.fault) continue;
    c.strokeStyle = M.colour(h.fault === "made" ? "bad" : "good");
    c.setLineDash([4, 3]); c.beginPath(); c.moveTo(x(h.t_ms), 2); c.lineTo(x(h.t_ms), bottom); c.stroke(); c.setLineDash([]);
  }
  for (const name of Object.keys(labels)) {
    c.strokeStyle = M.colour(name);
    c.lineWidth = (name === "mrc" ? 3 : 2.2) * thick;
    c.setLineDash(M.dash(name).map((one) => one * thick));
    c.beginPath();
    let drawing = false, before = 0;
    for (const h of history) {
      if (h.t_ms > before + M.GAP_MS) drawing = false;  // no frames came in this gap: begin a new line
      before = h.t_ms;
      if (!(name in h.rates) || h.t_ms < begin) { drawing = false; continue; }
      if (drawing) c.lineTo(x(h.t_ms), y(h.rates[name])); else c.moveTo(x(h.t_ms), y(h.rates[name]));
      drawing = true;
    }
    c.stroke();
    c.setLineDash([]);
  }
};

/* The duration of each step of an all-reduce, and the host whose rank ended last. ``steps`` has for each transport rows of
   [time of the frame, number, us, host]. */
M.drawSteps = (canvas, words, steps, end, labels) => {
  const [c, width, height] = M.canvas(canvas);
  const left = 78, bottom = height - 6, begin = end - M.SHOWN_MS;
  const shown = Object.entries(steps).filter(([, kept]) => kept.length);
  const ticks = M.ticks(Math.max(1, ...shown.flatMap(([, kept]) => kept.map((step) => step[2])))).filter((_, n, all) => all.length < 4 || n % 2 === 0 || n === all.length - 1);
  const most = 1.05 * ticks[ticks.length - 1];
  const x = (t) => left + ((t - begin) / M.SHOWN_MS) * (width - left - 6);
  const y = (us) => bottom - (us / most) * (bottom - 6);
  c.font = M.font(13);
  for (const us of ticks) {
    c.strokeStyle = M.colour("line"); c.fillStyle = M.colour("soft"); c.textAlign = "right";
    c.beginPath(); c.moveTo(left, y(us)); c.lineTo(width, y(us)); c.stroke();
    c.fillText(us ? M.time(us) : "0", left - 5, y(us) + 4);
  }
  for (const [name, kept] of shown) {
    c.strokeStyle = M.colour(name); c.lineWidth = 2; c.setLineDash(M.dash(name));
    c.beginPath();
    kept.forEach(([t, , us], n) => { if (n) c.lineTo(x(t), y(us)); else c.moveTo(x(t), y(us)); });
    c.stroke();
    c.setLineDash([]);
  }
  words.replaceChildren(...shown.map(([name, kept]) => {
    const [, number, us, host] = kept[kept.length - 1];
    return M.el("span", { style: `--c: var(--${name})`, "data-steps": name }, M.el("b", {}, labels[name]), ` step ${M.count(number)}: ${M.time(us)}, ${host} last`);
  }));
};

/* The height of a path's row. All rows fit on the screen if the rows are then still readable. */
M.rowHeight = (canvas, rows) => {
  const root = canvas.closest("#strips"), all = root ? root.querySelectorAll("canvas").length : 1;
  const stacked = root && all * 16.5 * M.size() > root.clientWidth;
  const room = M.onStage() && root ? root.clientHeight / (rows + 2 + (stacked ? 3 * (all - 1) : 0)) : 18;
  return Math.max(14, Math.min(1.6 * M.size(), Math.floor(room)));
};
M.onStage = () => matchMedia("(min-width: 901px) and (min-height: 560px)").matches;
M.size = () => parseFloat(getComputedStyle(document.body).fontSize);

/* One row for each path: the packets sent in each tenth of a second, coloured by the state of the path's EV.
   ``names``: rows of [EV, name, plane]. If there are many paths, omit idle paths in good state, and show only the names of planes. */
M.drawStrips = (canvas, history, names) => {
  const end = history.length ? history[history.length - 1].t_ms : 0;
  const shown = history.filter((h) => h.t_ms > end - M.STRIP_MS);
  const many = names.length > 40;
  const alive = (ev) => shown.some((h) => { const one = h.evs.get(ev); return one && (one.sent || one.lost || one.state > 1); });
  const rows = many ? names.filter(([ev]) => alive(ev)) : names;
  const high = many ? Math.max(3, Math.min(7, Math.floor(480 / Math.max(rows.length, 1)))) : M.rowHeight(canvas, rows.length), gap = many ? 5 : 0;
  const begins = rows.map(([, , plane], n) => !n || rows[n - 1][2] !== plane);
  const groups = begins.filter(Boolean).length;
  const [c, width] = M.canvas(canvas, Math.max(rows.length, 1) * high + groups * gap + 4);
  const left = Math.round((many ? 4.2 : 6.4) * M.size());
  const scale = (width - left) / M.STRIP_MS;
  const colours = { 0: M.colour("idle"), 1: M.colour("good"), 2: M.colour("warn"), 3: M.colour("bad"), 4: M.colour("soft") };
  c.font = M.font(12);
  let group = 0;
  rows.forEach(([ev, name, plane], row) => {
    if (begins[row]) group += 1;
    const y = row * high + group * gap;
    const words = many ? (begins[row] ? `plane ${plane}` : "") : name;
    if (words) { c.fillStyle = M.colour("soft"); c.textAlign = "left"; c.fillText(words, 0, many ? y + 9 : y + high * 0.72); }
    const most = Math.max(0.001, ...shown.map((h) => (h.evs.get(ev) || { sent: 0 }).sent / h.took_ms));
    const inside = many ? 1 : 2;
    shown.forEach((h) => {
      const one = h.evs.get(ev);
      if (!one) return;
      const to = Math.round(width - (end - h.t_ms) * scale), x = Math.max(left, Math.round(width - (end - h.t_ms + h.took_ms) * scale)), step = Math.max(1, to - x);
      c.globalAlpha = one.active || one.state === 3 ? 1 : 0.45;
      c.fillStyle = one.active || one.state === 3 || one.state === 4 ? colours[one.state] : M.colour("idle");
      if (one.state === 3) { c.globalAlpha = 0.55; c.fillRect(x, y + 1, step, high - inside); }
      else {
        const tall = Math.max(1.5, (high - inside) * Math.min(1, one.sent / h.took_ms / most));
        c.fillRect(x, y + high - inside + 1 - tall, step, tall);
      }
      if (one.lost) { c.globalAlpha = 1; c.fillStyle = M.colour("ink"); c.fillRect(x, y + 1, Math.max(2, step), high - inside); }
      c.globalAlpha = 1;
    });
  });
};

/* The x axis is time (us after the fault), the y axis the path. A lost packet is a cross, a packet sent again a ring. */
M.drawPackets = (canvas, data, until) => {
  const rows = data.paths.length, big = Math.max(1, M.size() / 16);
  const [c, width, height] = M.canvas(canvas, big * Math.min(560, Math.max(180, rows * 16 + 40)));
  const left = 108 * big, bottom = height - 26 * big;
  const first = Math.min(0, ...data.rows.map((r) => r[0])), last = Math.max(1, ...data.rows.map((r) => (r[5] === null ? r[0] : r[5])));
  const low = first - 0.04 * (last - first), top = last + 0.04 * (last - first);
  const x = (t) => left + ((t - low) / (top - low)) * (width - left - 10);
  const y = (path) => 8 + ((path + 0.5) / rows) * (bottom - 8);
  c.font = M.font(12);
  c.textAlign = "left";
  data.paths.forEach((name, path) => {
    c.fillStyle = data.broken.includes(path) ? M.colour("bad") : M.colour("soft");
    if (rows <= 40 || path % 8 === 0 || data.broken.includes(path)) c.fillText(name, 2, y(path) + 4 * big);
    if (data.broken.includes(path)) { c.globalAlpha = 0.12; c.fillRect(left, y(path) - 7 * big, width - left, 14 * big); c.globalAlpha = 1; }
  });
  c.strokeStyle = M.colour("bad"); c.setLineDash([4, 3]);
  c.beginPath(); c.moveTo(x(0), 4); c.lineTo(x(0), bottom); c.stroke(); c.setLineDash([]);
  c.fillStyle = M.colour("soft"); c.textAlign = "center";
  for (let n = 0; n <= 5; n += 1) { const t = low + ((top - low) * n) / 5; c.fillText(t < 0 ? `-${M.time(-t)}` : M.time(t), Math.min(width - 24 * big, x(t)), height - 8 * big); }
  for (const [t, path, , fate, again] of data.rows) {
    if (path < 0 || t > until) continue;
    const px = x(t), py = y(path);
    if (fate === 1) {
      c.strokeStyle = M.colour("bad"); c.lineWidth = 2.5 * big; c.beginPath();
      const arm = 5.5 * big;
      c.moveTo(px - arm, py - arm); c.lineTo(px + arm, py + arm); c.moveTo(px + arm, py - arm); c.lineTo(px - arm, py + arm); c.stroke();
    } else if (again) {
      c.strokeStyle = M.colour("blue"); c.lineWidth = 2.5 * big; c.beginPath(); c.arc(px, py, 5.5 * big, 0, 7); c.stroke();
    } else {
      c.fillStyle = fate === 2 ? M.colour("warn") : M.colour("good"); c.globalAlpha = 0.75;
      c.fillRect(px - 1.5 * big, py - 3.5 * big, 3 * big, 7 * big); c.globalAlpha = 1;
    }
  }
};
