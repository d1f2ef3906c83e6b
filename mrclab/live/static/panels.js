/* The parts of the page with text: numbers, cards of faults, the menu of a place, the traffic form. */
"use strict";

M.numbers = (root, frame) => {
  const names = Object.keys(frame.transports);
  if (root.dataset.names !== names.join()) {
    root.dataset.names = names.join();
    root.replaceChildren(...names.map((name) => M.el("div", { class: "number", style: `--c: var(--${name})`, "data-transport": name },
      M.el("span", { class: "name" }, frame.transports[name].label), " ", M.el("b", {}), M.el("div", {}))));
  }
  for (const div of root.children) {
    const one = frame.transports[div.dataset.transport];
    const rate = one.flows.reduce((sum, flow) => sum + flow[2], 0);
    M.text(div.querySelector("b"), M.rate(rate));
    const late = one.late || 0, ends = one.restarts + (one.gave_up ? 1 : 0);
    M.text(div.lastChild, `${M.count(one.resent - late)} sent again` + (late ? `, ${M.count(late)} without a fault (a late host or full queues)` : "") + (ends ? `, gave up ${M.times(ends)}` : ""));
    div.dataset.bps = rate;
  }
};

/* Clustermapper's verdicts on the links, compared with the present faults. */
M.mapper = (root, mapper, faults, turn) => {
  const parts = [M.el("b", {}, "Clustermapper "), mapper ? (mapper.starting ? "starts" : mapper.ours ? "probes every link" : "probes every link, from another terminal") : "is off"];
  if (turn && (!mapper || mapper.ours)) parts.push(" ", M.el("button", { id: "mapper-button", onclick: () => turn(!mapper), title: mapper ? "end it" : "probe every link of the fabric, and say which are bad" }, mapper ? "Switch off" : "Switch on"));
  const line = M.el("p", {}, ...parts);
  const rows = !mapper || mapper.starting ? [] : [
    ...mapper.verdicts.map((v) => M.el("li", { class: v.right ? "right" : "wrong", "data-verdict": v.place },
      `${v.place} ${v.cause === "dead" ? "is dead" : `loses ${(100 * v.ratio).toFixed(1)} %`}`,
      M.el("span", { class: "legend" }, v.right ? (v.after_ms === null ? " right" : ` right, ${M.time(1000 * v.after_ms)} after the fault`) : " wrong: there is no such fault now"))),
    ...mapper.missing.map((place) => M.el("li", { class: "missing" }, place, M.el("span", { class: "legend" }, " not found yet"))),
  ];
  if (mapper && !mapper.starting && !rows.length) rows.push(M.el("li", { class: "right" }, Object.keys(faults).length ? "no link loses packets" : "all links work"));
  root.replaceChildren(line, M.el("ul", {}, ...rows));
};

M.active = (root, frame, undo) => {
  const chips = Object.entries(frame.faults).map(([where, fault]) =>
    M.el("span", { class: "chip", "data-fault": where, title: where }, `${M.words(where)}: ${fault.text}`,
      undo && M.el("button", { onclick: () => undo(where), "aria-label": `undo ${M.words(where)}` }, "undo")));
  root.replaceChildren(...(chips.length ? chips : [M.el("span", { class: "legend" }, "no faults now")]));
};

M.TIMES = [["first_loss", "first loss"], ["detected", "detected"], ["rerouted", "last into the break"], ["recovered", "recovered"]];

M.card = (card, labels, packets) => {
  const head = M.el("tr", {}, M.el("th", {}, "since the fault"), ...M.TIMES.map(([, text]) => M.el("th", {}, text)), M.el("th", {}, ""));
  const rows = Object.entries(card.results).map(([name, r]) => {
    const label = M.el("th", { style: `--c: var(--${name})` }, labels[name]);
    if (!r.felt) return M.el("tr", {}, label, M.el("td", { colspan: 5, class: "words" }, `not felt: ${(r.recovered_why || "").replace("the fault took no packet: ", "")}`));
    const cells = M.TIMES.map(([key, words]) => {
      const us = r[`${key}_us`];
      const text = us !== null ? M.time(us) : key === "recovered" ? (r.gave_up ? "gave up" : "not yet") : "–";
      const strong = key === "recovered" && us !== null;
      return M.el("td", { "data-time": words, title: us !== null ? (r.rtt_us ? `${(us / r.rtt_us).toFixed(1)} round trips` : "") : r[`${key}_why`] || "" }, strong ? M.el("b", {}, text) : text);
    });
    const more = M.el("td", {}, M.el("button", { onclick: () => packets(card, name), title: "packet by packet" }, "packets"));
    return M.el("tr", { "data-result": name }, label, ...cells, more);
  });
  const since = Object.entries(card.results).find(([, r]) => r.felt && r.recovered_since_loss_us !== null && r.rtt_us);
  const words = since ? `${labels[since[0]]}: ${M.time(since[1].recovered_since_loss_us)} after the first loss, ${(since[1].recovered_since_loss_us / since[1].rtt_us).toFixed(1)} round trips of ${M.time(since[1].rtt_us)}; ${M.count(since[1].lost)} ${since[1].lost === 1 ? "packet" : "packets"} lost` : "";
  return M.el("article", { class: "card", "data-card": card.number },
    M.el("h3", {}, `${M.words(card.where)} `, M.el("span", { class: "soft" }, `${card.text}${card.undone ? ", undone" : ""} `, M.el("small", {}, card.where))),
    rows.length ? M.el("table", {}, M.el("thead", {}, head), M.el("tbody", {}, ...rows)) : M.el("p", { class: "legend" }, "working out the times…"),
    words && M.el("p", { class: "legend" }, words));
};

/* The menu of a place: buttons for faults, and the values that were measured there. */
M.menu = (root, chosen, frame, owner, actions) => {
  const faulty = frame.faults[chosen.where];
  const parts = [M.el("button", { class: "close", onclick: () => actions.close(), "aria-label": "close" }, "✕"), M.el("h3", {}, M.words(chosen.where), " ", M.el("small", { class: "exact" }, chosen.where))];
  if (chosen.index !== undefined && frame.links[chosen.index]) {
    const [up, down] = frame.links[chosen.index];
    parts.push(M.el("dl", {}, M.el("dt", {}, "away from the hosts"), M.el("dd", {}, M.rate(up)), M.el("dt", {}, "towards the hosts"), M.el("dd", {}, M.rate(down))));
  }
  if (owner && faulty) parts.push(M.el("div", { class: "row" }, `${faulty.text} `, M.el("button", { class: "strong", onclick: () => actions.undo(chosen.where) }, "Restore")));
  else if (owner) {
    const row = M.el("div", { class: "row" });
    for (const [key, text, fault] of actions.buttons(chosen.place)) row.append(M.el("button", { "data-kind": fault.kind, onclick: () => actions.fault({ ...fault, where: chosen.where }) }, text, " ", M.el("kbd", {}, key)));
    if (chosen.port) row.append(M.el("button", { onclick: () => actions.fault({ kind: "port-down", where: chosen.port }) }, "NIC port down"));
    parts.push(row);
    if (chosen.place === "link") {
      const ratio = M.el("input", { type: "number", value: 5, min: 0.01, max: 100, step: "any", "aria-label": "percent" });
      parts.push(M.el("div", { class: "row" }, "lose ", ratio, "% ", M.el("button", { onclick: () => actions.fault({ kind: "loss", ratio: ratio.value / 100, where: chosen.where }) }, "Make")));
    }
  }
  parts.push(M.el("div", { id: "known" }));
  root.replaceChildren(...parts);
  root.hidden = false;
  const known = (title, rows) => M.by("known").append(M.el("h4", {}, title), M.el("dl", {}, ...rows.flatMap(([a, b]) => [M.el("dt", {}, a), M.el("dd", {}, b)])));
  for (const [name, rows] of Object.entries(frame.paths)) {
    const over = rows.filter((row) => (actions.linksOf(row[0]) || []).includes(chosen.where));
    if (over.length) known(`${frame.transports[name].label}: paths over this link`, over.map((r) => [`EV 0x${r[0].toString(16)}`, `${M.EV_NAMES[r[2]]}${r[3] ? ", in use" : ""}; ${M.count(r[4])} sent, ${M.count(r[6])} lost`]));
  }
  const node = chosen.place === "switch" ? chosen.where : chosen.place === "link" ? chosen.where.split(":")[1] : null;
  if (node && actions.counters) actions.counters(node).then((answer) => {
    const counts = answer && answer.counters;
    if (!counts || root.hidden || !M.by("known")) return;
    const sum = (group, what) => Object.values(counts[group]).reduce((all, one) => all + one[what], 0);
    const queues = (what) => Object.values(counts.queues || {}).reduce((all, one) => all + ((one[what] && one[what].packets) || 0), 0);
    const drops = Object.entries(counts.drops).map(([reason, one]) => [`dropped: ${reason.replaceAll("_", " ")}`, M.count(one.packets)]);
    known(`${node} counts`, [["frames in", M.count(sum("rx", "packets"))], ["frames out", M.count(sum("tx", "packets"))],
      ["marked (ECN)", M.count(queues("marked"))], ["trimmed", M.count(queues("trimmed"))], ["refused by a queue", M.count(queues("refused"))], ...drops]);
  });
};

M.trafficForm = (root, plan, labels, sim, send) => {
  const unit = sim ? 1e9 : 1e6;
  const box = (name) => M.el("label", {}, M.el("input", { type: "checkbox", name: "transports", value: name, checked: plan.transports.includes(name) }), ` ${labels[name]}`);
  const option = (value, text, is) => M.el("option", { value, selected: value === is }, text);
  root.replaceChildren(
    M.el("button", { class: "close", type: "button", onclick: () => { root.hidden = true; } }, "✕"), M.el("h3", {}, "Traffic"),
    ...Object.keys(labels).map(box),
    M.el("label", {}, "Who sends ", M.el("select", { name: "pattern" }, option("stream", "one stream", plan.pattern), option("permutation", "permutation", plan.pattern), option("incast", "incast", plan.pattern), sim ? null : option("all-reduce", "all-reduce", plan.pattern))),
    M.el("label", { id: "rate-of" }, "Rate of each flow ", M.el("input", { type: "number", name: "rate", value: plan.rate_bps / unit, min: 0.1, max: sim ? sim.max_rate_bps / unit : 1000, step: "any" }), sim ? " Gbit/s" : " Mbit/s"),
    M.el("label", {}, M.el("span", { id: "size-of" }, "Message "), M.el("select", { name: "message" }, ...[4096, 32768, 262144, 1048576].map((n) => option(n, n >= 1048576 ? "1 MiB" : `${n / 1024} KiB`, plan.message_bytes)))),
    M.el("div", { class: "row" }, M.el("button", { class: "strong" }, "Start")));
  const pattern = root.querySelector("[name=pattern]"), size = root.querySelector("[name=message]");
  const suit = () => {
    const reduces = pattern.value === "all-reduce";
    M.by("rate-of").hidden = reduces;
    M.by("size-of").textContent = reduces ? "Buffer of each rank " : "Message ";
  };
  pattern.onchange = () => { suit(); size.value = pattern.value === "all-reduce" ? 262144 : 32768; };
  suit();
  root.onsubmit = (event) => {
    event.preventDefault();
    const data = new FormData(root);
    send({ ...plan, transports: data.getAll("transports"), pattern: data.get("pattern"), rate_bps: Math.round(data.get("rate") * unit), message_bytes: Number(data.get("message")) });
    root.hidden = true;
  };
};
