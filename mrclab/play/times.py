"""The four times of a fault, from the frames of a simulation. Pure.

The rule is that of every experiment (`mrclab.experiments.measure.recovery`), with the path of each frame
from the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.play.tracks import LOST, NEVER, TRIMMED, Track
from mrclab.topologies import Path

RULE: Final = "every frame of the simulation; paths by the frames' segment lists"
STAYS: Final = "it has one path, and stays on it"
KEEPS: Final = "it goes on using paths that lose packets"
MOVES: Final = "its failed port's messages are sent again on another port"
STILL_USED: Final = "a path that the fault broke is still in use"
NOT_DETECTED: Final = "no path that the fault broke has been retired"
NONE_SENT: Final = "nothing was sent where it broke the fabric"
NONE_LOST: Final = "nothing was lost where it broke the fabric"


def times_of(
    tracks: Iterable[Track],
    fault: FaultRecord,
    paths: Sequence[Path],
    first: Mapping[tuple[int, int], int],
    retired: Sequence[tuple[int, int]],
    *,
    flight_ns: int,
    now_ns: int,
    retires: bool,
    stays: str = STAYS,
    delivered: Callable[[int], int] | None = None,
) -> dict[str, Any]:
    """Return the times of a fault on one transport until now, in us, as a card of the live page has them.

    ``tracks`` are its data in order of time, ``first`` the first whole arrival of each packet, ``retired``
    (ns, EV) of the paths that its senders gave up. ``retires`` is False for a transport that never does;
    ``stays`` says what it does instead. Of a transport that sends lost messages again on other queue pairs,
    ``delivered`` returns when all messages posted until then had been received.
    """
    made, mended = fault.t_before_ns, fault.restore_before_ns or NEVER
    broken = {number for number, path in enumerate(paths) if fault.breaks(path)}
    met = [t for t in tracks if t.path in broken and made - flight_ns <= t.t_ns < mended]
    lost = [t for t in met if t.fate in (LOST, TRIMMED) and first.get(t.key, NEVER) > t.t_ns]
    found: dict[str, Any] = {"felt": bool(lost), "rule": RULE, "lost": len({t.key for t in lost})}
    if not lost:
        why = NONE_LOST if any(t.t_ns >= made for t in met) else NONE_SENT
        for name in ("first_loss", "detected", "rerouted", "recovered", "recovered_since_loss"):
            found |= {f"{name}_us": None, f"{name}_why": why}
        return found
    bad_evs = {paths[number].ev for number in broken}
    gone = [(t_ns, ev) for t_ns, ev in retired if made <= t_ns < mended and ev in bad_evs]
    first_ns = max(lost[0].t_ns - made, 0)
    detected_ns = gone[0][0] - made if gone else None
    rerouted_ns = None
    if retires:
        onto = [t for t in met if t.t_ns >= made]
        used = {paths[t.path].ev for t in onto}
        if used <= {ev for _, ev in gone}:
            rerouted_ns = max((t.t_ns - made for t in onto), default=0)
    whole = [first.get(t.key, NEVER) if delivered is None else delivered(t.t_ns) for t in lost]
    recovered_ns = None if NEVER in whole else max(max(whole) - made, detected_ns or 0)
    if retires and detected_ns is None and mended == NEVER and now_ns - made < flight_ns:
        recovered_ns = None
    for name, value, why in (
        ("first_loss", first_ns, ""),
        ("detected", detected_ns, NOT_DETECTED if retires else stays),
        ("rerouted", rerouted_ns, STILL_USED if retires else stays),
        ("recovered", recovered_ns, f"{whole.count(NEVER)} of {len(whole)} lost packets are still missing"),
    ):
        found[f"{name}_us"] = None if value is None else round(value / 1e3, 3)
        if value is None:
            found[f"{name}_why"] = why
    since = None if recovered_ns is None else round((recovered_ns - first_ns) / 1e3, 3)
    found["recovered_since_loss_us"] = since
    return found


def packets_around(
    tracks: Iterable[Track],
    fault: FaultRecord,
    paths: Sequence[Path],
    *,
    before_ns: int,
    until_ns: int,
    most: int = 1500,
) -> dict[str, Any]:
    """Return the transmissions around a fault: the rows are those of `mrclab.live.card.packets_around`."""
    zero = fault.t_before_ns
    rows = []
    for t in tracks:
        if not zero - before_ns <= t.t_ns <= zero + until_ns or t.path < 0:
            continue
        fate = {LOST: 1, TRIMMED: 2}.get(t.fate, 0)
        arrived = None if t.arrived_ns == NEVER else round((t.arrived_ns - zero) / 1e3, 3)
        rows.append([round((t.t_ns - zero) / 1e3, 3), t.path, t.key[1], fate, int(t.kind == 1), arrived])
    names = [f"plane {p.plane}" + ("" if p.t1 is None else f", T1 {p.t1}") for p in paths]
    broken = [number for number, path in enumerate(paths) if fault.breaks(path)]
    links = [list(path.links) for path in paths]
    return {"paths": names, "links": links, "broken": broken, "rows": rows[:most]}
