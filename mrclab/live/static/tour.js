/* The guided tour has six steps. Each step has a button that carries it out, and a sentence that says what to watch. */
"use strict";

M.TOUR = [
  { title: "Spray", text: "MRC sends packet after packet over all planes: each row under “Paths” is one entropy value (EV), so one path. RoCEv2 uses a single one.", button: null },
  { title: "Cut", text: "A silent cut of a link that RoCEv2 uses: no switch notices. RoCEv2 stands still until the link is restored, MRC goes on.", button: "Cut a link of RoCEv2's path", act: (a) => M.cutUsed(a) },
  { title: "Heal", text: "MRC has probed the path all the time: after some good probes its EV turns green again and takes its share.", button: "Restore the link", act: (a) => a.undo(null) },
  { title: "Incast", text: "Four hosts send to one, each over all planes. Congestion control holds them back; a click on a rack switch above that host shows what it marked (ECN), trimmed or refused.", button: "Start an incast", act: (a) => a.traffic({ ...a.usual(), transports: ["mrc"], pattern: "incast" }) },
  { title: "A switch dies", text: "All links of a spine (T1) that RoCEv2 uses are gone at once. Every EV through it is retired within round trips.", button: "Kill a T1", act: async (a) => {
    const link = await M.mended(a);
    if (link) await a.fault({ kind: "switch-death", where: link.split(":")[1] });
  } },
  { title: "A plane dies", text: "Every switch of the plane that RoCEv2 uses. The other planes carry everything. Then undo all, and try what you like.", button: "Kill RoCEv2's plane", act: async (a) => {
    const link = await M.mended(a);
    await a.fault({ kind: "plane-death", where: link ? link.split("-")[0] : "p0" });
  } },
];

M.tour = (root, actions) => {
  let step = 0;
  const show = () => {
    const { title, text, button, act } = M.TOUR[step];
    const go = button && M.el("button", { class: "strong", id: "tour-go", onclick: async (event) => {
      const { target } = event;
      target.disabled = true;
      target.dataset.done = "yes";
      try { await act(actions); } finally { target.disabled = false; }
    } }, button);
    root.replaceChildren(
      M.el("h3", {}, `${step + 1} of ${M.TOUR.length}: ${title}`), M.el("p", {}, text),
      M.el("div", { class: "row" }, go,
        step > 0 && M.el("button", { id: "tour-back", onclick: () => { step -= 1; show(); } }, "Back"),
        step < M.TOUR.length - 1 && M.el("button", { id: "tour-next", onclick: () => { step += 1; show(); } }, "Next"),
        M.el("button", { class: "close", "aria-label": "close the tour", onclick: () => { root.hidden = true; } }, "✕")));
    root.hidden = false;
  };
  show();
};
