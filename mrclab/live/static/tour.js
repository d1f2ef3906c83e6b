/* The guided tour: six steps, each a button that does it and a sentence on what to look at. */
"use strict";

M.TOUR = [
  { title: "Spray", text: "One queue pair, many paths: MRC sends packet after packet over all planes at once. Each row under “Paths” is one entropy value (EV), so one path. RoCEv2 uses a single one.", button: null },
  { title: "Cut", text: "Cut one link silently: no switch notices. The link is one that RoCEv2 uses. Watch the rates: RoCEv2 stands still, MRC goes on. The card says after how many microseconds.", button: "Cut a link of RoCEv2's path", act: async (a) => {
    const link = (await a.used("rocev2")) || (await a.used("mrc"));
    if (link) await a.fault({ kind: "blackhole", where: link });
  } },
  { title: "Heal", text: "Restore the link. MRC has probed the path all the time: after some good probes its EV turns green again and takes its share.", button: "Restore the link", act: (a) => a.undo(null) },
  { title: "Incast", text: "Four hosts send to one. All planes carry a share of each flow: the rows under “Paths” are equally tall. Congestion control holds the senders back before the links of that host overflow. Click a T0 above it: it counts the frames that its queues marked (ECN), trimmed or refused.", button: "Start an incast", act: (a) => a.traffic({ ...a.usual(), transports: ["mrc"], pattern: "incast" }) },
  { title: "A switch dies", text: "Kill a T1: all links of it are gone at once. Every EV through it is retired within round trips, and backup EVs of the same plane take over.", button: "Kill a T1", act: async (a) => {
    await a.undo(null); await a.traffic(a.usual());
    await a.pause(2500);
    const link = (await a.used("rocev2")) || (await a.used("mrc"));
    if (link) await a.fault({ kind: "switch-death", where: link.split(":")[1] });
  } },
  { title: "A plane dies", text: "Kill a whole plane: every switch in it. The other planes carry everything. Then undo all, and try what you like: click a link.", button: "Kill plane 0", act: async (a) => { await a.undo(null); await a.fault({ kind: "plane-death", where: "p0" }); } },
];

M.tour = (root, actions) => {
  let step = 0;
  const show = () => {
    const { title, text, button, act } = M.TOUR[step];
    const go = button && M.el("button", { class: "strong", id: "tour-go", onclick: async (event) => {
      event.target.disabled = true;
      try { await act(actions); } finally { event.target.disabled = false; }
    } }, button);
    root.replaceChildren(
      M.el("button", { class: "close", onclick: () => { root.hidden = true; } }, "✕"),
      M.el("h3", {}, `${step + 1} of ${M.TOUR.length}: ${title}`), M.el("p", {}, text),
      M.el("div", { class: "row" }, go,
        step > 0 && M.el("button", { onclick: () => { step -= 1; show(); } }, "Back"),
        step < M.TOUR.length - 1 && M.el("button", { id: "tour-next", onclick: () => { step += 1; show(); } }, "Next")));
    root.hidden = false;
  };
  show();
};
