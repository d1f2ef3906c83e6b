"""Made-up results for the judge of EV modes: the EVs that are retired while a link is dead."""

from __future__ import annotations

from functools import cache
from typing import Any

from mrclab.hosts.rdma.frames import UDP_PORT
from mrclab.topologies import load_fabric
from mrclab.topologies.ev_paths import hashed_ev, hashed_path, structured_paths
from tests.support.made_results import Cases, Result, events, result, trial

LAB = load_fabric("lab")
SRC, DST = LAB.far_ends()
LINKS = [f"p{plane}-t0-0:p{plane}-t1-{t1}" for plane in (0, 1, 2) for t1 in (1, 3)]
HOLD_S, EACH_S = 0.1, 0.3


@cache
def broken(mode: str, link: str) -> tuple[int, ...]:
    """Return the EVs whose paths use a link."""
    if mode == "mrc-ecmp":
        drawn = [hashed_ev(plane, free * 7919) for plane in range(4) for free in range(32)]
        return tuple(ev for ev in drawn if link in hashed_path(LAB, SRC, DST, ev, UDP_PORT).links)
    paths = structured_paths(LAB, SRC, DST) if mode == "mrc-structured" else LAB.paths(SRC, DST)
    return tuple(path.ev for path in paths if link in path.links)


def sound(mode: str, link: str) -> int:
    return next(ev for other in LINKS if other != link for ev in broken(mode, other))


def part(mode: str, what: str = "", n: int = len(LINKS)) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the transport and the trials of an EV mode. ``what`` is their error, or ""."""
    retired: list[list[float]] = []
    restored: list[list[float]] = []
    trials = []
    for number, link in enumerate(LINKS[:n]):
        at_s = 1 + number * EACH_S
        evs = list(broken(mode, link))
        if what == "one too many":
            evs.append(sound(mode, link))
        if what == "one stays":
            evs = evs[1:]
        if what == "one for each path":
            evs = evs[:1]
        retired += [[at_s * 1e6 + 200, 0, 1, ev] for ev in evs]
        restored += [[(at_s + HOLD_S) * 1e6 + 900, 0, 1, ev] for ev in evs]
        at_ns, end_ns = round(at_s * 1e9), round((at_s + HOLD_S) * 1e9)
        stamps = {"t_before_ns": at_ns, "t_after_ns": at_ns, "restore_before_ns": end_ns, "at_us": at_s * 1e6}
        silent = {"name": "silent_after_rerouting", "ok": what != "not silent", "detail": ""}
        times = {"detected_us": 200.0, "recovered_us": None if what == "lost" else 300.0}
        times["rerouted_us"] = None if what == "not rerouted" else 210.0
        fault = {"kind": "blackhole", "where": link, **stamps}
        felt = what != "not felt"
        trials.append(trial(mode, fault=fault, checks=[silent], felt=felt, **times))
    found = events(1, retired=retired, restored=restored, left_out=int(what == "events missing"))
    return {"options": {"max_active_evs": 8 if what == "few EVs" else 128}, **found}, trials


def ev_modes() -> Cases:
    def run(n: int = len(LINKS), **wrong: str) -> Result:
        modes = {name: part(name, wrong.get(key, ""), n) for key, name in names.items()}
        return result(
            {"kind": "spray", "src": "auto", "dst": "auto", "duration_ns": 0},
            {name: transport for name, (transport, _) in modes.items()},
            topology="lab",
            trials=[t for _, trials in modes.values() for t in trials],
        )

    names = {"srv6": "mrc", "structured": "mrc-structured", "ecmp": "mrc-ecmp"}
    return Cases(
        run(),
        {
            "a sound segment list is retired": run(srv6="one too many"),
            "a sound structured EV is retired": run(structured="one too many"),
            "a sound hashed EV is retired": run(ecmp="one too many"),
            "a structured EV over the link stays": run(structured="one stays"),
            "a segment list over the link stays": run(srv6="one stays"),
            "hashed EVs share no path": run(ecmp="one for each path"),
            "data goes on over a structured EV's link": run(structured="not silent"),
            "data goes on over a segment list's link": run(srv6="not silent"),
            "data goes on over a hashed EV's link": run(ecmp="not silent"),
            "a packet by a hashed EV never came": run(ecmp="lost"),
            "a hashed EV's link is used until its repair": run(ecmp="not rerouted"),
            "a segment list's link is used until its repair": run(srv6="not rerouted"),
            "a structured EV's link is used until its repair": run(structured="not rerouted"),
            "a packet by a segment list never came": run(srv6="lost"),
            "a packet by a structured EV never came": run(structured="lost"),
        },
        {
            "none was felt with structured EVs": run(structured="not felt"),
            "none was felt with segment lists": run(srv6="not felt"),
            "none was felt with hashed EVs": run(ecmp="not felt"),
            "not all events are known": run(srv6="events missing"),
            "fewer EVs than paths": run(structured="few EVs"),
            "two faults": run(n=2),
        },
    )
