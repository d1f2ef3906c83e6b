/* The fabric: a panel for each plane, T1s above T0s above NIC ports. Links show their load and their faults. */
"use strict";

M.Fabric = class {
  constructor(root, fabric, chosen) {
    this.root = root;
    this.fabric = fabric;
    this.chosen = chosen;
    this.zoomed = null;
    [this.width, this.height] = [400, 176];
    this.lines = [];
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
    this.lines = [];
    this.nodes.clear();
    this.panels = [];
    const planes = this.zoomed === null ? [...Array(fabric.planes).keys()] : [this.zoomed];
    const columns = planes.length === 1 || root.clientWidth < 480 ? 1 : planes.length > 4 && root.clientWidth > 700 ? 4 : 2;
    root.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const plane of planes) root.append(this.plane(plane));
    M.by("net-hint").textContent = this.grouped ? "click a plane to open it" : "S spine (T1), R rack (T0)";
    this.choices();
  }

  /* The list of all places, for viewers who do not click on the drawing. */
  choices() {
    const select = M.by("place"), { fabric } = this;
    const option = (place, where, index) => M.el("option", { value: `${place} ${where}`, "data-index": index }, M.words(where));
    const some = fabric.links.length <= 600;
    const groups = [...Array(fabric.planes).keys()].map((plane) => M.el("optgroup", { label: `plane ${plane}` }, option("plane", `p${plane}`),
      ...fabric.switches.filter((s) => s.plane === plane).map((s) => option("switch", s.name)),
      ...(some ? fabric.links.map(([name, , , of], index) => (of === plane ? option("link", name, index) : null)).filter(Boolean) : []),
      ...(some ? Object.entries(fabric.ports).filter(([ends]) => ends.includes(`:p${plane}-`)).map(([, port]) => option("port", port)) : [])));
    select.replaceChildren(M.el("option", { value: "" }, "choose a place"), ...groups);
    select.onchange = () => {
      const [place, where] = select.value.split(" "), chosen = select.selectedOptions[0];
      select.value = "";
      if (!where) return;
      const index = chosen.dataset.index === undefined || chosen.dataset.index === "undefined" ? undefined : Number(chosen.dataset.index);
      const link = index === undefined ? null : fabric.links[index];
      this.chosen({ place, where, index, port: link ? fabric.ports[`${link[1]}:${link[2]}`] : undefined, from: select });
    };
  }

  /* One place of a drawing: a button for the mouse, the keyboard and a screen reader. */
  makeButton(node, chosen) {
    const open = () => this.chosen({ ...chosen, from: node });
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", M.words(chosen.where));
    node.setAttribute("tabindex", -1);
    node.addEventListener("click", open);
    node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); open(); } });
  }

  /* The Tab key goes from plane to plane, and arrow keys go from place to place. */
  arrows(svg) {
    const all = () => [...svg.querySelectorAll("[role=button]")];
    if (all().length) all()[0].setAttribute("tabindex", 0);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const places = all(), at = places.indexOf(event.target);
      const to = event.key === "Home" ? 0 : event.key === "End" ? places.length - 1 : step === undefined || at < 0 ? -1 : (at + step + places.length) % places.length;
      if (to < 0) return;
      event.preventDefault();
      places[at].setAttribute("tabindex", -1);
      places[to].setAttribute("tabindex", 0);
      places[to].focus();
    });
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
    const { width, height } = this, levels = [20, 88, 152];
    const margin = this.grouped ? 0 : 40;  // for the name of the plane
    const place = (list, y) => list.map((one, n) => [one.name, margin + ((n + 0.5) / list.length) * (width - margin), y]);
    const at = new Map([...place(t1, levels[0]), ...place(t0, levels[1]), ...place(fabric.hosts, levels[2])]
      .map(([name, x, y]) => [name, [x, y]]));
    const svg = M.el("svg", { viewBox: `0 0 ${width} ${height}`, role: this.grouped ? "img" : "group", "aria-label": `plane ${plane}` });
    const small = this.grouped, marks = [];
    fabric.links.forEach(([name, a, b, of], index) => {
      if (of !== plane) return;
      const [x1, y1] = at.get(a), [x2, y2] = at.get(b);
      this.lines[index] = { x1, y1, x2, y2, plane };
      const line = M.el("line", { x1, y1, x2, y2, class: "link", stroke: M.colour("idle") });
      if (small) line.style.strokeWidth = 0.8;
      else {
        const port = fabric.ports[`${a}:${b}`];
        const hit = M.el("line", { x1, y1, x2, y2, class: "hit", "data-link": name },
          M.el("title", {}, `${M.words(name)} (${name})`));
        this.makeButton(hit, { place: "link", where: name, port, index });
        svg.append(hit);
      }
      const mark = M.el("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 + 7, class: "mark" }, "✕");
      mark.style.display = "none";
      svg.append(line);
      marks.push(mark);
      this.links.set(name, { line, mark, index, small });
    });
    const size = small ? 3 : Math.min(14, 150 / Math.max(t1.length, t0.length, fabric.hosts.length));
    for (const one of [...t1, ...t0]) {
      const [x, y] = at.get(one.name);
      const node = M.el("rect", { x: x - size, y: y - size * 0.8, width: 2 * size, height: 1.6 * size, rx: 2, class: "node",
        "data-switch": one.name }, M.el("title", {}, `${M.words(one.name)} (${one.name})`));
      if (!small) this.makeButton(node, { place: "switch", where: one.name });
      svg.append(node);
      if (!small && size > 8) marks.push(M.el("text", { x, y: y + 4.5, class: "label inside" }, `${one.tier === "t1" ? "S" : "R"}${one.name.split("-")[2]}`));
      this.nodes.set(one.name, node);
    }
    for (const host of fabric.hosts) {
      const [x, y] = at.get(host.name);
      const node = M.el("circle", { cx: x, cy: y, r: Math.min(8, size * 0.8), class: "node" }, M.el("title", {}, host.name));
      const t0name = fabric.links.find(([, a, , of]) => a === host.name && of === plane);
      const port = t0name && fabric.ports[`${host.name}:${t0name[2]}`];
      if (!small && port) this.makeButton(node, { place: "port", where: port });
      svg.append(node);
      if (port) this.nodes.set(port, node);
      if (!small && fabric.hosts.length <= 16) svg.append(M.el("text", { x, y: y + 20, class: "label" }, host.name));
    }
    svg.append(...marks);
    if (!small) this.arrows(svg);
    const title = M.el("button", { onclick: (e) => { e.stopPropagation(); this.chosen({ place: "plane", where: `p${plane}` }); } },
      `plane ${plane}`);
    const panel = M.el("div", { class: "plane", "data-plane": `p${plane}` }, title);
    if (this.zoomed !== null) panel.append(M.el("button", { onclick: () => this.zoom(null) }, "all planes"));
    else if (small) {
      panel.style.cursor = "zoom-in";
      panel.addEventListener("click", () => this.zoom(plane));
    }
    panel.append(M.el("div", { class: "drawing" }, svg, M.el("canvas", { class: "motion", "data-plane": plane })));
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
