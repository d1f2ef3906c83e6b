/* The fabric: a panel for each plane, T1s above T0s above NIC ports. Links show their load and their faults. */
"use strict";

M.Fabric = class {
  constructor(root, fabric, chosen) {
    this.root = root;
    this.fabric = fabric;
    this.chosen = chosen;
    this.zoomed = null;
    this.links = new Map();
    this.nodes = new Map();
    this.build();
  }

  /* A plane with many links is drawn small, and opens on a click. */
  get grouped() { return this.fabric.links.length / this.fabric.planes > 60 && this.zoomed === null; }

  build() {
    const { fabric, root } = this;
    this.loads = null;
    root.replaceChildren();
    this.links.clear();
    this.nodes.clear();
    this.panels = [];
    const planes = this.zoomed === null ? [...Array(fabric.planes).keys()] : [this.zoomed];
    const columns = planes.length === 1 || root.clientWidth < 480 ? 1 : planes.length > 4 && root.clientWidth > 700 ? 4 : 2;
    root.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const plane of planes) root.append(this.plane(plane));
    M.by("net-hint").textContent = this.grouped ? "click a plane to open it" : "click a link, a switch or a NIC port";
  }

  zoom(plane) {
    this.zoomed = plane;
    this.build();
    if (this.frame) this.update(this.frame);
  }

  plane(plane) {
    const { fabric } = this;
    const t1 = fabric.switches.filter((s) => s.plane === plane && s.tier === "t1");
    const t0 = fabric.switches.filter((s) => s.plane === plane && s.tier === "t0");
    const width = 400, height = 190, levels = [28, 100, 166];
    const place = (list, y) => list.map((one, n) => [one.name, ((n + 0.5) / list.length) * width, y]);
    const at = new Map([...place(t1, levels[0]), ...place(t0, levels[1]), ...place(fabric.hosts, levels[2])]
      .map(([name, x, y]) => [name, [x, y]]));
    const svg = M.el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `plane ${plane}` });
    const small = this.grouped, marks = [];
    fabric.links.forEach(([name, a, b, of], index) => {
      if (of !== plane) return;
      const [x1, y1] = at.get(a), [x2, y2] = at.get(b);
      const line = M.el("line", { x1, y1, x2, y2, class: "link", stroke: M.colour("idle") });
      if (small) line.style.strokeWidth = 0.8;
      else {
        const port = fabric.ports[`${a}:${b}`];
        const hit = M.el("line", { x1, y1, x2, y2, class: "hit", tabindex: 0, "data-link": name },
          M.el("title", {}, name));
        const open = () => this.chosen({ place: "link", where: name, port, index });
        hit.addEventListener("click", open);
        hit.addEventListener("keydown", (e) => { if (e.key === "Enter") open(); });
        svg.append(hit);
      }
      const mark = M.el("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 + 7, class: "mark" }, "✕");
      mark.style.display = "none";
      svg.append(line);
      marks.push(mark);
      this.links.set(name, { line, mark, index, small });
    });
    const size = small ? 3 : Math.min(10, 150 / Math.max(t1.length, t0.length, fabric.hosts.length));
    for (const one of [...t1, ...t0]) {
      const [x, y] = at.get(one.name);
      const node = M.el("rect", { x: x - size, y: y - size * 0.8, width: 2 * size, height: 1.6 * size, rx: 2, class: "node",
        "data-switch": one.name }, M.el("title", {}, one.name));
      if (!small) node.addEventListener("click", () => this.chosen({ place: "switch", where: one.name }));
      svg.append(node);
      this.nodes.set(one.name, node);
    }
    for (const host of fabric.hosts) {
      const [x, y] = at.get(host.name);
      const node = M.el("circle", { cx: x, cy: y, r: size * 0.8, class: "node" }, M.el("title", {}, host.name));
      const t0name = fabric.links.find(([, a, , of]) => a === host.name && of === plane);
      const port = t0name && fabric.ports[`${host.name}:${t0name[2]}`];
      if (!small && port) node.addEventListener("click", () => this.chosen({ place: "port", where: port }));
      svg.append(node);
      if (port) this.nodes.set(port, node);
      if (!small && fabric.hosts.length <= 16) svg.append(M.el("text", { x, y: y + 20, class: "label" }, host.name));
    }
    svg.append(...marks);
    const title = M.el("button", { onclick: (e) => { e.stopPropagation(); this.chosen({ place: "plane", where: `p${plane}` }); } },
      `plane ${plane}`);
    const panel = M.el("div", { class: "plane", "data-plane": `p${plane}` }, title);
    if (this.zoomed !== null) panel.append(M.el("button", { onclick: () => this.zoom(null) }, "all planes"));
    else if (small) {
      panel.style.cursor = "zoom-in";
      panel.addEventListener("click", () => this.zoom(plane));
    }
    panel.append(svg);
    this.panels.push([`p${plane}`, panel]);
    return panel;
  }

  update(frame) {
    this.frame = frame;
    const loads = frame.links || [];
    if (loads === this.loads && frame.faults === this.faults && M.colours.theme === this.theme) return;
    [this.loads, this.faults, this.theme] = [loads, frame.faults, M.colours.theme];
    const most = loads.reduce((found, [up, down]) => Math.max(found, up, down), 1e5);
    const low = M.colour("load-0"), high = M.colour("load-1"), idle = M.colour("idle");
    for (const [name, { line, mark, index, small }] of this.links) {
      const load = loads[index] ? Math.max(...loads[index]) : 0;
      const share = Math.round(20 * Math.sqrt(load / most)) / 20;
      const fault = Boolean(frame.faults[name]);
      const look = `${share} ${load > most / 500} ${fault} ${low}`;
      if (line.dataset.look === look) continue;
      line.dataset.look = look;
      line.setAttribute("stroke", load > most / 500 ? M.blend(low, high, share) : idle);
      line.classList.toggle("faulty", fault);
      line.style.strokeWidth = fault ? "" : (small ? 0.8 : 1.5) + 3 * share * (small ? 0.5 : 1);
      mark.style.display = fault ? "" : "none";
    }
    for (const [name, node] of this.nodes) node.classList.toggle("faulty", Boolean(frame.faults[name]));
    for (const [name, panel] of this.panels) panel.classList.toggle("dead", Boolean(frame.faults[name]));
    if (!M.by("scale").firstChild) M.by("scale").append("idle ", M.el("span", { class: "ramp" }), M.el("span", {}));
    M.text(M.by("scale").lastChild, ` ${M.rate(most)} on a link, ✕ faulty`);
  }
};
