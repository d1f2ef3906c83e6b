"""The live page on a running fabric: traffic, captures and faults, with ten page updates a second.

The thread of `Session.run` does all the work. `Session.do` queues requests of the page for this thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from mrclab.control import call
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.recovery import Retirements
from mrclab.experiments.run.link_bytes import bytes_carried
from mrclab.faults.kinds import Fault, checked, describe
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.hosts.worker import AgentError
from mrclab.linux.errors import InputError, MrclabError
from mrclab.live.card import BEFORE_NS, Card, Look, RecentCapture, Watched, work_out
from mrclab.live.describe import LOOKS, evs_between
from mrclab.live.health import LatePackets, LiveClustermapper, SwitchCheck
from mrclab.live.page_requests import PageRequests
from mrclab.live.plan import TrafficPlan
from mrclab.live.recording import KeptPackets
from mrclab.live.sending import AgentTraffic, KernelStack, News, RankTraffic, Traffic
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.ownership import holders

LOGGER = logging.getLogger(__name__)
PERIOD_S = 0.1
LINKS_EVERY = 3
"""Link loads are read only for every third page update: on a large fabric, a read takes milliseconds."""
BESIDE_EVERY = 10
KEPT_CARDS = 40
KEPT_RETIREMENTS = 4096
CAPTURED_BYTES = 64 << 20
"""The limit for the captures of all hosts together: more than 12 s at 20,000 packets a second."""
MOST_EVENTS = 200
"""The largest number of events in one frame. If a plane fails, hundreds of EVs are retired."""

Listener = Callable[[dict[str, Any]], None]


class Session:
    """A running fabric with traffic. ``listener`` gets a page update (frame) with all measurements."""

    def __init__(self, network: FabricNetwork, plan: TrafficPlan, listener: Listener) -> None:
        self.network = network
        self.fabric = network.fabric
        self.plan = plan
        self._listener = listener
        self._kernel = KernelStack(network)
        self._mapper = LiveClustermapper(network)
        self._switches = SwitchCheck(network.fabric, partial(call, network.names))
        self._beside = False
        """True while an experiment runs on this machine at the same time."""
        self._requests = PageRequests(PERIOD_S, (AgentError, OSError))
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._captures: dict[str, RecentCapture] = {}
        self._traffic: dict[str, Traffic] = {}
        self._cards: deque[Card] = deque(maxlen=KEPT_CARDS)
        self._packets = KeptPackets()
        self._looks = ThreadPoolExecutor(1, "live look")
        self._look: tuple[Card, Future[Look]] | None = None
        self._retired: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._active: dict[str, dict[str, Any]] = {}
        self._compared_ns = 0
        """The time at which `_active` was last compared with the testbed's faults."""
        self._placed: dict[tuple[str, int], deque[tuple[int, int]]] = {}
        """For each flow of a transport: the time (ns) and delivered bytes of the newest readings."""
        self._carried: tuple[int, dict[str, tuple[int, int]]] = (0, {})
        self._links: list[list[int]] = []
        self._restarts: dict[str, int] = {}
        self._broken: set[str] = set()
        """The transports that gave up a connection. They connect again when no fault is left."""
        self._late = LatePackets()
        self._paths: Mapping[str, list[list[int]]] = {}
        self._shown = 0
        self._number = 0
        self.begun_ns = time.monotonic_ns()
        self.gone: str | None = None
        """The reason if an error has ended the session, otherwise None."""

    @property
    def topology(self) -> str:
        """The name of the fabric."""
        return self.fabric.name

    def plan_document(self) -> dict[str, Any]:
        """Return the present traffic in JSON types."""
        return self.plan.model_dump()

    def evs(self, source: str, target: str) -> list[list[Any]]:
        """Return the paths between two hosts. Raise InputError if there are no such hosts."""
        return evs_between(self.fabric, source, target)

    # -- methods for other threads

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` soon in the session's thread, and return a future of its result."""
        return self._requests.do(work)

    def stop(self) -> None:
        """End ``run`` after the present page update."""
        self._requests.stop()

    # -- requests of the page: `do` runs these methods in the session's thread

    def make_fault(self, fault: Fault) -> dict[str, Any]:
        """Make a fault and add its card. Raise InputError if this fabric cannot have the fault."""
        fault = checked(self.fabric, fault)
        moment = call(self.network.names, "fault", fault=asdict(fault))
        record = FaultRecord(
            fault.kind,
            fault.where,
            moment["t_before_ns"],
            moment["t_after_ns"],
            direction=fault.direction,
            params={"ratio": fault.ratio},
        )
        self._number += 1
        flows = {name: traffic.flows for name, traffic in self._traffic.items()}
        card = Card(self._number, record, describe(fault), flows=flows)
        self._cards.append(card)
        self._active[fault.where] = {
            "kind": fault.kind,
            "text": card.text,
            "card": card.number,
            "t_ns": record.middle_ns,
        }
        return {"card": card.number, "where": fault.where}

    def undo(self, where: str | None) -> dict[str, Any]:
        """Undo the fault at a place, or all faults. Raise InputError if there is no such fault."""
        answer = call(self.network.names, "restore", where=where)["restored"]
        for place, moment in answer.items():
            self._note_undone(place, moment["t_before_ns"], moment["t_after_ns"])
        return {"restored": sorted(answer)}

    def set_traffic(self, plan: TrafficPlan) -> dict[str, Any]:
        """Replace the traffic by the plan's traffic. Raise InputError if the plan does not fit the fabric."""
        plan.check(self.fabric)
        if _needs_kernel(plan):
            self._kernel.up()  # refused while a switch is dead: then the present traffic goes on
        self._end_traffic()
        for card in self._cards:
            card.close()
        self._retired.clear()
        self.plan = plan
        self._start_traffic()
        return {}

    def show(self, flow: int) -> dict[str, Any]:
        """Choose the flow whose paths are shown. Raise InputError if there is no such flow."""
        count = len(self.plan.pairs(self.fabric))
        if not 0 <= flow < count:
            raise InputError(f"flows are 0 to {count - 1}, not {flow}")
        self._shown = flow
        return {}

    def packets(self, number: int, transport: str) -> dict[str, Any]:
        """Return the transmissions around the fault of a card. Raise InputError if they are not stored."""
        found = self._packets.of(number, transport)
        if found is None:
            raise InputError(f"no packets are kept of fault {number} and {transport}")
        return found

    def set_mapper(self, on: bool) -> dict[str, Any]:
        """Start or end Clustermapper. Raise InputError if it already runs in another terminal."""
        self._mapper.switch(on)
        return {"on": on}

    def counters(self, switch: str) -> dict[str, Any]:
        """Return the counters of a switch. Raise InputError if there is no such switch."""
        return call(self.network.names, "counters", switch=switch)

    def busiest(self, transport: str) -> str | None:
        """Return a T0-T1 link that the shown flow of a transport uses now, or None if there is none."""
        pair = self.plan.pairs(self.fabric)[self._shown]
        paths = {path.ev: path for path in self.fabric.paths(*pair)}
        for row in self._paths.get(transport, ()):
            path = paths.get(row[0])
            if row[3] and path is not None and path.t1 is not None:
                return path.links[1]
        return None

    # -- methods that run in the session's thread only

    def run(self) -> None:
        """Work until ``stop`` is called or the testbed has ended."""
        try:
            self._follow_others()
            self._start_traffic()
            due = time.monotonic()
            turn = 0
            while not self._requests.stopping:
                self._requests.answer_until(due)
                turn += 1
                self._tick(turn)
                due = max(due + PERIOD_S, time.monotonic())
        except (MrclabError, OSError) as error:
            self.gone = f"{error}" if isinstance(error, MrclabError) else f"the testbed is gone ({error})"
        except Exception as error:
            LOGGER.exception("the session failed")
            self.gone = f"the session failed ({error!r})"
        finally:
            self._looks.shutdown()
            try:
                self._end_traffic()
                self._kernel.down()
                self._mapper.close()
            except Exception:  # for example, because a process has already ended
                LOGGER.warning("cannot end the traffic in order", exc_info=True)
            self._listener({"over": self.gone or "the session has ended"})
            self._requests.refuse_rest()

    def _follow_others(self) -> None:
        """Add the faults that other programs made, and note which faults they have undone."""
        found = call(self.network.names, "faults")["faults"]
        now_ns = time.monotonic_ns()
        for where, known in list(self._active.items()):
            if found.get(where, {}).get("kind") != known["kind"]:
                self._note_undone(where, self._compared_ns, now_ns)
        for where, fault in found.items():
            text = describe(Fault(**fault))
            self._active.setdefault(where, {"kind": fault["kind"], "text": text, "card": 0, "t_ns": None})
        self._compared_ns = now_ns

    def _note_undone(self, where: str, before_ns: int, after_ns: int) -> None:
        found = self._active.pop(where, None)
        for card in self._cards:
            if found is not None and card.number == found["card"]:
                card.undo(max(before_ns, card.fault.t_after_ns), after_ns)

    def _start_traffic(self) -> None:
        self._shown = 0
        self._placed.clear()
        self._late.begin()
        self._broken.clear()
        if not _needs_kernel(self.plan):
            self._kernel.down()
        for name in self.plan.transports:
            self._traffic[name] = self._connected(name)
        hosts = {host for traffic in self._traffic.values() for host in traffic.hosts}
        for host in sorted(hosts):
            ports = tuple(port.ifname for port in self.fabric.host(host).ports)
            place = self.network.names.host(host)
            self._captures[host] = RecentCapture(place, ports, self._offset_ns, CAPTURED_BYTES // len(hosts))

    def _connected(self, name: str) -> Traffic:
        in_ranks = not TRANSPORTS[name].core.has_nic or self.plan.pattern == "all-reduce"
        kind = RankTraffic if in_ranks else AgentTraffic
        return kind(self.network, name, self.plan, self._restarts.get(name, 0))

    def _end_traffic(self) -> None:
        while self._captures:
            self._captures.popitem()[1].close()
        while self._traffic:
            self._traffic.popitem()[1].close()

    def _restart_or_wait(self, name: str) -> None:
        """Connect a transport again after it gave up a connection.

        During faults, do not connect. Only note that the transport gave up.
        """
        if not self._active:
            self._restart(name)
        elif name not in self._broken:
            self._broken.add(name)
            self._note_gave_up(name)

    def _note_gave_up(self, name: str) -> None:
        for card in self._cards:
            card.give_up(name)

    def _restart(self, name: str) -> None:
        """Connect a transport again, as a job does after a restart."""
        if name in self._broken:
            self._broken.discard(name)
        else:
            self._note_gave_up(name)
        self._traffic.pop(name).close()
        self._restarts[name] = self._restarts.get(name, 0) + 1
        for key in [key for key in self._placed if key[0] == name]:
            del self._placed[key]
        self._late.connect(name)
        self._traffic[name] = self._connected(name)

    def _tick(self, turn: int) -> None:
        self._end_look()
        self._keep_what_is_needed()
        waiting = [card for card in self._cards if card.due] if self._look is None else []
        due = min(waiting, key=lambda card: card.urgency, default=None)
        if due is not None:
            for capture in self._captures.values():
                capture.carry()
        now_ns = time.monotonic_ns()
        transports = {}
        paths: dict[str, list[list[int]]] = {}
        failed = []
        for name, traffic in self._traffic.items():
            news = traffic.news(self._shown)
            transports[name] = self._state(traffic, news)
            paths[name] = news.paths
            self._note_events(name, news)
            if news.failed:
                failed.append(name)
        self._paths = paths
        if turn % LINKS_EVERY == 1:
            self._read_links()
        if turn % BESIDE_EVERY == 1:
            self._beside = bool(holders())
            self._follow_others()
            self._switches.check(self._active)
        if due is not None:
            self._begin_look(due, now_ns)
        self._listener(
            {
                "t_ms": (now_ns - self.begun_ns) // 1_000_000,
                "transports": transports,
                "paths": paths,
                "shown": self._shown,
                "links": self._links,
                "faults": dict(self._active),
                "cards": [card.to_dict() for card in list(self._cards)[-12:]],
                "events": self._take_events(),
                "mapper": self._mapper.seen(self._active),
                "beside": self._beside,
            }
        )
        for name in {*failed, *self._broken} & set(self._traffic):
            self._restart_or_wait(name)

    def _state(self, traffic: Traffic, news: News) -> dict[str, Any]:
        flows = []
        late = self._late.take(traffic.name, news.resent, time.monotonic_ns(), broken=bool(self._active))
        for number, (flow, (t_ns, placed)) in enumerate(zip(traffic.flows, news.placed, strict=True)):
            rate = self._rate(self._placed.setdefault((traffic.name, number), deque()), t_ns, placed)
            flows.append([flow.source, flow.target, rate])
        return {
            "label": LOOKS[traffic.name].label,
            "flows": flows,
            "sent": news.sent,
            "resent": self._late.total(traffic.name),
            "late": late,
            "restarts": self._restarts.get(traffic.name, 0),
            "gave_up": int(traffic.name in self._broken),
            "steps": [list(step) for step in news.steps],
        }

    def _rate(self, readings: deque[tuple[int, int]], t_ns: int, placed: int) -> int:
        """Add a reading of a flow. Return its rate, bit/s, since the last reading or over some messages.

        A flow may send less than a message between two page updates. Without messages it is not silent.
        """
        plan = self.plan
        some_ns = 0 if plan.pattern == "all-reduce" else 4 * 8 * 10**9 * plan.message_bytes // plan.rate_bps
        readings.append((t_ns, placed))
        while len(readings) > 2 and readings[1][0] <= t_ns - some_ns:
            readings.popleft()
        elapsed = t_ns - readings[0][0]
        return round(8e9 * (placed - readings[0][1]) / elapsed) if elapsed > 0 else 0

    def _note_events(self, name: str, news: News) -> None:
        for host, event in news.events:
            if event["name"] == "EvRetired":
                kept = self._retired.setdefault((name, host), deque(maxlen=KEPT_RETIREMENTS))
                kept.append((event["t_ns"], event["ev"]))
            self._events.append({"transport": name, "host": host, **event})

    def _take_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call, oldest first."""
        found = list(self._events)
        self._events.clear()
        return found

    def _read_links(self) -> None:
        """Read the present rate of each link in bit/s: [away from the hosts, towards the hosts]."""
        now_ns, counts = time.monotonic_ns(), bytes_carried(self.network)
        before_ns, before = self._carried
        self._carried = now_ns, counts
        if before:
            per_s = 8e9 / (now_ns - before_ns)
            # The upper end of every link is an interface of a switch. This interface counts both directions.
            ends = [link.b.ifname for link in self.fabric.links]
            self._links = [
                [round(max(0, counts[end][way] - before[end][way]) * per_s) for way in (1, 0)] for end in ends
            ]

    def _begin_look(self, card: Card, until_ns: int) -> None:
        """Compute a card's times in another thread, because this may take longer than a page update."""
        card.begin_look()
        watched, captures = self._watched(card), dict(self._captures)
        look = self._looks.submit(work_out, card.fault, watched, captures, self.fabric, until_ns)
        self._look = card, look

    def _end_look(self) -> None:
        """If the thread that `_begin_look` uses has computed a card's times, store the times."""
        if self._look is None or not self._look[1].done():
            return
        card, look = self._look
        self._look = None
        found = look.result()
        card.take(found.results, whole=found.whole, over=found.over)
        for name, packets in found.packets.items():
            if found.whole or self._packets.of(card.number, name) is None:
                self._packets.put(card.number, name, packets)

    def _keep_what_is_needed(self) -> None:
        """Set the time from which captures are kept: shortly before the oldest fault that needs captures."""
        moments = [card.fault.t_before_ns - BEFORE_NS for card in self._cards if card.unsettled]
        for capture in self._captures.values():
            capture.pieces.since_ns = min(moments, default=None)

    def kept_bytes(self) -> dict[str, int]:
        """Return how many bytes of memory the captures and the packets around faults need."""
        captures = list(self._captures.values())
        return {
            "captures": sum(capture.pieces.held_bytes for capture in captures),
            "packets": self._packets.held_bytes,
        }

    def _watched(self, card: Card) -> list[Watched]:
        """Return each transport that has no recovery time yet.

        Each entry has the flows when the card's fault began, and the retired EVs of the flows' hosts.
        """
        found = []
        for name, flows in ((name, card.flows[name]) for name in card.open_transports):
            retired = {}
            for host in dict.fromkeys(host for flow in flows for host in (flow.source, flow.target)):
                columns = np.array(self._retired.get((name, host), ()), np.int64).reshape(-1, 2)
                retired[host] = Retirements(columns[:, 0], columns[:, 1])
            found.append(Watched(name, flows, retired))
        return found


def _needs_kernel(plan: TrafficPlan) -> bool:
    return not all(TRANSPORTS[name].core.has_nic for name in plan.transports)
