"""A simulated fabric with traffic for the live page. It takes requests and returns page updates (frames).

Time passes only in `Play.advance`. The same scene with the same events gives the same page updates on
every machine. So a web address that contains the scene and its events shows the same run everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.faults.kinds import ALL_KINDS, Fault, Place, checked, describe
from mrclab.linux.errors import InputError
from mrclab.live.describe import about, evs_between
from mrclab.play.lane import Lane
from mrclab.play.scene import MAX_RATE_BPS, OFFERED, PATTERNS, Scene, faster, scene_of
from mrclab.topologies import Fabric

PACES: Final = (1_000, 5_000, 20_000, 100_000, 1_000_000)
"""The possible paces: virtual ns in a second of the viewer's time, from 1 us to 1 ms."""
USUAL_PACE: Final = 20_000
KEPT_CARDS: Final = 12
RATE_SPAN: Final = 15
"""Rates are averages over this number of page updates, or over four messages if these take longer."""
BUTTONS: Mapping[str, tuple[tuple[str, str, Mapping[str, Any]], ...]] = {
    Place.LINK.short: (
        ("c", "Cut silently", {"kind": "blackhole"}),
        ("1", "Lose 1 %", {"kind": "loss", "ratio": 0.01}),
        ("5", "Lose 20 %", {"kind": "loss", "ratio": 0.2}),
        ("b", "Corrupt 1 %", {"kind": "corruption", "ratio": 0.01}),
        ("d", "Delay 20 us", {"kind": "delay", "delay_ns": 20_000}),
        ("p", "Unplug", {"kind": "carrier"}),
    ),
    Place.NIC_PORT.short: (("p", "Take down", {"kind": "port-down"}),),
    Place.SWITCH.short: (("k", "Kill", {"kind": "switch-death"}),),
    Place.PLANE.short: (("k", "Kill the plane", {"kind": "plane-death"}),),
}
"""The page's buttons for faults, without faults of milliseconds: slow motion makes these faults too long."""
ALLOWED: Final = frozenset(fault["kind"] for row in BUTTONS.values() for _, _, fault in row)


@dataclass(slots=True)
class Card:
    """A card of the page: one fault, with its times."""

    number: int
    fault: FaultRecord
    text: str
    undone: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    """The transports whose times for this fault are final."""

    def to_dict(self) -> dict[str, Any]:
        """Return the card as the dictionary that is sent to the page."""
        return {
            "number": self.number,
            "where": self.fault.where,
            "kind": self.fault.kind,
            "text": self.text,
            "t_ns": self.fault.t_before_ns,
            "undone": self.undone,
            "results": dict(self.results),
        }


def fault_of(data: object) -> Fault:
    """Return the fault of a request. Raise InputError, with a message of one line, if it is not valid."""
    if not isinstance(data, Mapping):
        raise InputError("a fault is a JSON object")
    known = Fault.__dataclass_fields__
    extra = set(data) - set(known)
    if extra or not isinstance(data.get("where"), str):
        raise InputError(
            f"a fault has {', '.join(known)}: not {', '.join(sorted(map(str, extra))) or 'this'}"
        )
    given = {name: value for name, value in data.items() if value is not None}
    for name in ("ratio", "delay_ns", "period_ns", "down_ns"):
        if name in given and (not isinstance(given[name], int | float) or isinstance(given[name], bool)):
            raise InputError(f"{name} is a number, not {given[name]}")
    if given.get("kind") not in ALLOWED:
        kinds = ", ".join(sorted(ALLOWED))
        raise InputError(f"no fault kind '{given.get('kind')}' in slow motion: choose {kinds}")
    return Fault(**given)


class Play:
    """A simulated scene: one lane (a separate network) for each transport, and the faults of all lanes."""

    def __init__(self, scene: Scene, fabric: Fabric) -> None:
        """Build the networks of a scene. Raise InputError if the fabric has too many hosts."""
        self.scene = scene
        self.fabric = faster(fabric)
        self.pace = USUAL_PACE
        self._begin()

    def _begin(self) -> None:
        """Build the networks without faults, and set the time to 0."""
        self.lanes = {name: Lane(name, self.scene, self.fabric) for name in self.scene.transports}
        self.now_ns = 0
        self.events: list[list[Any]] = []
        """[ns, "fault" or "restore", data] of all events. A web address with these events repeats a run."""
        self._planned: deque[list[Any]] = deque()
        self._cards: deque[Card] = deque(maxlen=KEPT_CARDS)
        self._active: dict[str, dict[str, Any]] = {}
        self._shown = 0
        self._number = 0
        self._placed: deque[tuple[int, dict[str, list[int]]]] = deque()
        self._carried: deque[tuple[int, list[list[tuple[int, int]]]]] = deque()
        longest_ns = 8 * self.scene.message_bytes * 10**9 // self.scene.rate_bps
        self._rate_ns = 4 * longest_ns

    def about(self, version: str) -> dict[str, Any]:
        """Return the page's constant data, in the same form as for a running testbed."""
        looks = {name: offered.look for name, offered in OFFERED.items()}
        found = about(self.fabric, "sim", version, Scene(self.scene.fabric).to_dict(), looks)
        rate_bps = found["fabric"]["rate_bps"]
        return {
            **found,
            "buttons": {place: [list(row) for row in rows] for place, rows in BUTTONS.items()},
            "plan": self.scene.to_dict(),
            "sim": {
                "paces": list(PACES),
                "pace": self.pace,
                "rate_bps": rate_bps,
                "max_rate_bps": MAX_RATE_BPS,
                "patterns": list(PATTERNS),
                "rtt_ns": next(iter(self.lanes.values())).rtt_ns,
            },
        }

    # -- requests of the page's viewer

    def plan_events(self, events: object) -> None:
        """Store faults and restores for `advance` to execute later. Raise InputError on a bad event."""
        if not isinstance(events, list) or len(events) > 200:
            raise InputError("events are a list of at most 200")
        for entry in events:
            if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], int):
                raise InputError("an event is [ns, 'fault' or 'restore', data]")
            if entry[1] == "fault":
                checked(self.fabric, fault_of(entry[2]))
            elif entry[1] != "restore":
                raise InputError(f"an event is a fault or a restore, not '{entry[1]}'")
        if any(a[0] > b[0] for a, b in pairwise(events)) or (events and events[0][0] < self.now_ns):
            raise InputError("events are in order of time")
        self._planned = deque(events)

    def make_fault(self, data: object) -> dict[str, Any]:
        """Make a fault now for every transport, and add its card. Raise InputError on a bad fault."""
        fault = checked(self.fabric, fault_of(data))
        for lane in self.lanes.values():
            lane.faults.apply(fault)
        self._number += 1
        record = FaultRecord(
            fault.kind,
            fault.where,
            self.now_ns,
            self.now_ns,
            direction=fault.direction,
            params={"ratio": fault.ratio},
        )
        card = Card(self._number, record, describe(fault))
        self._cards.append(card)
        self._active[fault.where] = {
            "kind": fault.kind,
            "text": card.text,
            "card": card.number,
            "t_ns": self.now_ns,
        }
        given = {name: value for name, value in asdict(fault).items() if name in _taken(fault)}
        self.events.append([self.now_ns, "fault", given])
        return {"card": card.number, "where": fault.where}

    def undo(self, where: str | None) -> dict[str, Any]:
        """Undo the fault at a place, or all faults. If no fault is left, reconnect flows that gave up.

        Raise InputError if there is no such fault.
        """
        if where is not None and where not in self._active:
            raise InputError(f"there is no fault at {where}")
        places = [where] if where is not None else list(self._active)
        for place in places:
            found = self._active.pop(place)
            for lane in self.lanes.values():
                lane.faults.undo(place)
            for card in self._cards:
                if card.number == found["card"]:
                    card.fault = replace(
                        card.fault, restore_before_ns=self.now_ns, restore_after_ns=self.now_ns
                    )
                    card.undone = True
        if not self._active:
            for lane in self.lanes.values():
                lane.reconnect()
        self.events.append([self.now_ns, "restore", where])
        return {"restored": sorted(places)}

    def show(self, flow: int) -> dict[str, Any]:
        """Choose the flow whose paths are shown. Raise InputError if there is no such flow."""
        count = len(self.scene.pairs(self.fabric))
        if not 0 <= flow < count:
            raise InputError(f"flows are 0 to {count - 1}, not {flow}")
        self._shown = flow
        return {}

    def set_scene(self, scene: Scene) -> dict[str, Any]:
        """Begin again at time 0 with other traffic. Raise InputError if the scene is for another fabric."""
        if scene.fabric != self.scene.fabric:
            raise InputError(f"the fabric is {self.scene.fabric}: another one needs another page")
        self.scene = scene
        self._begin()
        return {}

    def set_pace(self, ns_per_s: int) -> dict[str, Any]:
        """Set the pace: virtual ns per second of the viewer's time.

        Raise InputError if the pace is out of bounds.
        """
        if not isinstance(ns_per_s, int) or not PACES[0] <= ns_per_s <= PACES[-1]:
            raise InputError(f"a pace is {PACES[0]} to {PACES[-1]} ns in a second, not {ns_per_s}")
        self.pace = ns_per_s
        return {"pace": ns_per_s}

    def packets(self, number: int, transport: str) -> dict[str, Any]:
        """Return transmissions around the fault of card ``number``. Raise InputError if none are stored."""
        for card in self._cards:
            if card.number == number and transport in self.lanes:
                result = card.results.get(transport, {})
                return self.lanes[transport].packets(card.fault, result.get("recovered_us"))
        raise InputError(f"no packets are kept of fault {number} and {transport}")

    def busiest(self, transport: str) -> str | None:
        """Return a T0-T1 link that the shown flow of a transport uses now, or None."""
        if transport not in self.lanes:
            return None
        pair = self.scene.pairs(self.fabric)[self._shown]
        paths = {path.ev: path for path in self.fabric.paths(*pair)}
        for row in self.lanes[transport].path_rows(self._shown):
            path = paths.get(row[0])
            if row[3] and path is not None and path.t1 is not None:
                return path.links[1]
        return None

    def counters(self, switch: str) -> dict[str, Any]:
        """Return a switch's counters for the first transport. Raise InputError if there is no such switch."""
        if switch not in {plan.name for plan in self.fabric.switches}:
            raise InputError(f"no switch '{switch}' in {self.fabric.name}")
        return {"counters": next(iter(self.lanes.values())).counters(switch)}

    def evs(self, source: str, target: str) -> list[list[Any]]:
        """Return the paths between two hosts. Raise InputError if there are no such hosts."""
        return evs_between(self.fabric, source, target)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Answer a request. ``path`` is a path of the live server. Raise InputError on a bad request."""
        what, *rest = path.split("/")
        given = body or {}
        if what == "fault":
            return self.make_fault(given)
        if what == "restore":
            return self.undo(given.get("where"))
        if what == "show":
            return self.show(given.get("flow", 0))
        if what == "pace":
            return self.set_pace(given.get("pace", 0))
        if what == "traffic":
            return self.set_scene(scene_of(given, self.scene))
        if what == "packets" and len(rest) == 2 and rest[0].isdecimal():
            return self.packets(int(rest[0]), rest[1])
        if what == "used" and rest:
            return {"link": self.busiest(rest[0])}
        if what == "counters" and rest:
            return self.counters(rest[0])
        if what == "evs" and len(rest) == 2:
            return {"evs": self.evs(*rest)}
        raise InputError(f"the simulation cannot answer '{path}'")

    # -- virtual time

    def advance(self, until_ns: int) -> None:
        """Advance virtual time to ``until_ns``. Execute each planned fault or restore at its time."""
        while self._planned and self._planned[0][0] <= until_ns:
            t_ns, what, data = self._planned.popleft()
            self._run(max(t_ns, self.now_ns))
            self.make_fault(data) if what == "fault" else self.undo(data)
        self._run(max(until_ns, self.now_ns))

    def _run(self, until_ns: int) -> None:
        for lane in self.lanes.values():
            lane.run(until_ns)
        self.now_ns = until_ns

    def frame(self) -> dict[str, Any]:
        """Return the present page update, in the same form as for a running testbed."""
        moves, ends = {}, {}
        for name, lane in self.lanes.items():
            moves[name], ends[name] = lane.book.take()
        for card in self._cards:
            self._look(card)
        rates = self._rates()
        transports: dict[str, Any] = {}
        for name, lane in self.lanes.items():
            sent, again = lane.sent()
            flows = [[f.source, f.target, rate] for f, rate in zip(lane.flows, rates[name], strict=True)]
            transports[name] = {
                "label": OFFERED[name].look.label,
                "flows": flows,
                "sent": sent,
                "resent": again,
                "restarts": sum(flow.restarts for flow in lane.flows),
                "gave_up": sum(flow.gave_up_ns is not None for flow in lane.flows),
                "steps": [],
            }
        return {
            "t_ms": self.now_ns / 1e6,
            "transports": transports,
            "paths": {name: lane.path_rows(self._shown) for name, lane in self.lanes.items()},
            "shown": self._shown,
            "links": self._loads(),
            "faults": dict(self._active),
            "cards": [card.to_dict() for card in self._cards],
            "events": [],
            "mapper": None,
            "beside": False,
            "sim": {
                "t_ns": self.now_ns,
                "pace": self.pace,
                "moves": moves,
                "ends": ends,
                "queues": {name: lane.queues(100) for name, lane in self.lanes.items()},
            },
        }

    def _look(self, card: Card) -> None:
        """Compute the times of a card again, for the transports whose times are not final."""
        for name, lane in self.lanes.items():
            if name in card.settled:
                continue
            found = lane.times(card.fault)
            card.results[name] = found
            over_ns = self.now_ns - (card.fault.restore_before_ns or card.fault.t_before_ns)
            quiet = over_ns > 20 * lane.rtt_ns
            done = found["recovered_us"] is not None or not found["felt"]
            if quiet and done and (card.undone or not lane.retires or found["rerouted_us"] is not None):
                card.settled.add(name)

    def _rates(self) -> dict[str, list[int]]:
        """Return the delivered rate of each flow in bit/s, averaged over the last page updates."""
        now = {name: [lane.placed(flow) for flow in lane.flows] for name, lane in self.lanes.items()}
        self._placed.append((self.now_ns, now))
        while len(self._placed) > RATE_SPAN and self._placed[1][0] <= self.now_ns - self._rate_ns:
            self._placed.popleft()
        t_ns, before = self._placed[0]
        elapsed = max(self.now_ns - t_ns, 1)
        return {
            name: [round(8e9 * max(0, b - a) / elapsed) for a, b in zip(before[name], now[name], strict=True)]
            for name in now
        }

    def _loads(self) -> list[list[int]]:
        """Return the rate, bit/s, of each link in both directions: the largest rate among the transports."""
        now = [lane.carried() for lane in self.lanes.values()]
        self._carried.append((self.now_ns, now))
        while len(self._carried) > RATE_SPAN and self._carried[1][0] <= self.now_ns - self._rate_ns:
            self._carried.popleft()
        t_ns, before = self._carried[0]
        per_s = 8e9 / max(self.now_ns - t_ns, 1)
        found = []
        for index in range(len(self.fabric.links)):
            found.append(
                [
                    round(
                        per_s * max(b[index][way] - a[index][way] for a, b in zip(before, now, strict=True))
                    )
                    for way in (0, 1)
                ]
            )
        return found


def _taken(fault: Fault) -> tuple[str, ...]:
    """Return the names of the fields that describe a fault in a web address."""
    return ("kind", "where", *ALL_KINDS[fault.kind].takes)
