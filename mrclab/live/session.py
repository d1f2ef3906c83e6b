"""The live lab's work: traffic, captures, faults and what they did, ten times a second.

One thread does it all (`Session.run`); requests from the page reach it through `Session.do`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from controller.fault_kinds import Fault, checked
from experiments.measure.faults import FaultRecord
from experiments.measure.recovery import Retirements
from experiments.measure.trace import Trace
from experiments.run.traffic import bytes_carried
from hosts.remote import AgentError
from linux.errors import InputError, MrclabError
from mrclab.control import call
from mrclab.live.card import Card, Watched, packets_around, work_out
from mrclab.live.plan import LABELS, TrafficPlan
from mrclab.live.recent_capture import RecentCapture
from mrclab.live.traffic import TransportTraffic
from testbed.network import FabricNetwork

PERIOD_S = 0.1
LINKS_EVERY = 3
"""Link loads are read every so many periods: one reading takes some milliseconds on a large fabric."""
KEPT_CARDS = 40
KEPT_RETIREMENTS = 4096
KEPT_EVENTS = 200

Listener = Callable[[dict[str, Any]], None]


class Session:
    """A running fabric with traffic on it, watched. Frames of what is seen go to ``listener``."""

    def __init__(self, network: FabricNetwork, plan: TrafficPlan, listener: Listener) -> None:
        self.network = network
        self.fabric = network.fabric
        self.plan = plan
        self._listener = listener
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._captures: dict[str, RecentCapture] = {}
        self._traffic: dict[str, TransportTraffic] = {}
        self._cards: deque[Card] = deque(maxlen=KEPT_CARDS)
        self._traces: dict[int, dict[str, list[Trace]]] = {}
        self._retired: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._active: dict[str, dict[str, Any]] = {}
        self._placed: dict[tuple[str, int], tuple[int, int]] = {}
        self._carried: tuple[int, dict[str, tuple[int, int]]] = (0, {})
        self._links: list[list[int]] = []
        self._restarts: dict[str, int] = {}
        self._shown = 0
        self._number = 0
        self.begun_ns = time.monotonic_ns()
        self.gone: str | None = None
        """Why the session is over, where it did not end by itself."""

    # -- from other threads

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Have the session's thread carry out ``work``, soon."""
        future: Future[Any] = Future()
        self._requests.put((work, future))
        return future

    def stop(self) -> None:
        """End ``run`` after its present turn."""
        self._stopping.set()
        self._requests.put((lambda: None, Future()))

    # -- requests: called by `do` in the session's thread

    def make_fault(self, fault: Fault) -> dict[str, Any]:
        """Make a fault and begin its card. Raise InputError where it makes no sense here."""
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
        card = Card(self._number, record, describe(fault))
        self._cards.append(card)
        self._active[fault.where] = {"kind": fault.kind, "text": card.text, "card": card.number}
        return {"card": card.number, "where": fault.where}

    def undo(self, where: str | None) -> dict[str, Any]:
        """Undo the fault of a place, or all. Raise InputError where there is none."""
        answer = call(self.network.names, "restore", where=where)["restored"]
        for place, moment in answer.items():
            found = self._active.pop(place, None)
            for card in self._cards:
                if found is not None and card.number == found["card"]:
                    card.undo(moment["t_before_ns"], moment["t_after_ns"])
        return {"restored": sorted(answer)}

    def set_traffic(self, plan: TrafficPlan) -> dict[str, Any]:
        """End the present traffic and start another."""
        self._end_traffic()
        self.plan = plan
        self._start_traffic()
        return {}

    def show(self, flow: int) -> dict[str, Any]:
        """Choose the flow whose paths are shown. Raise InputError where there is none."""
        count = len(self.plan.pairs(self.fabric))
        if not 0 <= flow < count:
            raise InputError(f"flows are 0 to {count - 1}, not {flow}")
        self._shown = flow
        return {}

    def packets(self, number: int, transport: str) -> dict[str, Any]:
        """Return the transmissions around the fault of a card. Raise InputError where there are none."""
        card = next((c for c in self._cards if c.number == number), None)
        traces = self._traces.get(number, {}).get(transport, [])
        if card is None or not traces:
            raise InputError(f"no packets are kept of fault {number} and {transport}")
        hit = max(traces, key=lambda trace: int(trace.sent.lost.sum()))
        return packets_around(hit, card.fault, card.results.get(transport, {}).get("recovered_us"))

    def counters(self, switch: str) -> dict[str, Any]:
        """Return what a switch counts. Raise InputError where there is no such switch."""
        found = call(self.network.names, "status", verify=False)["switches"].get(switch)
        if found is None:
            raise InputError(f"no switch '{switch}' in {self.fabric.name}")
        return dict(found)

    def busiest(self, transport: str) -> str | None:
        """Return a T0-T1 link that the transport's first flow uses now."""
        pair = self.plan.pairs(self.fabric)[0]
        paths = {path.ev: path for path in self.fabric.paths(*pair)}
        for row in self._last_paths.get(transport, ()):
            path = paths.get(row[0])
            if row[3] and path is not None and path.t1 is not None:
                return path.links[1]
        return None

    # -- the session's thread

    _last_paths: Mapping[str, list[list[int]]] = {}

    def run(self) -> None:
        """Work until ``stop``, or until the testbed is gone."""
        try:
            self._adopt_faults()
            self._start_traffic()
            due = time.monotonic()
            turn = 0
            while not self._stopping.is_set():
                self._answer_until(due)
                turn += 1
                self._tick(turn)
                due = max(due + PERIOD_S, time.monotonic())
        except Exception as error:
            self.gone = f"{error}" if isinstance(error, MrclabError) else f"the testbed is gone ({error})"
        finally:
            with suppress(Exception):
                self._end_traffic()
            self._listener({"over": self.gone or "the session has ended"})
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        while not self._requests.empty():
            _, future = self._requests.get()
            if not future.done():
                future.set_exception(InputError("the session has ended"))

    def _answer_until(self, due_s: float) -> None:
        while True:
            try:
                work, future = self._requests.get(timeout=max(0.0, due_s - time.monotonic()))
            except queue.Empty:
                return
            try:
                future.set_result(work())
            except (AgentError, OSError) as error:
                future.set_exception(error)
                raise
            except Exception as error:
                future.set_exception(error)
            if self._stopping.is_set():
                return

    def _adopt_faults(self) -> None:
        """Show faults that somebody else made before."""
        for where, fault in call(self.network.names, "status", verify=False)["faults"].items():
            self._active[where] = {"kind": fault["kind"], "text": fault["kind"], "card": 0}

    def _start_traffic(self) -> None:
        self._shown = 0
        self._placed.clear()
        for name in self.plan.transports:
            self._traffic[name] = TransportTraffic(self.network, name, self.plan)
        hosts = {host for traffic in self._traffic.values() for host in traffic.hosts}
        for host in hosts:
            ports = tuple(port.ifname for port in self.fabric.host(host).ports)
            place = self.network.names.host(host)
            self._captures[host] = RecentCapture(place, ports, self._offset_ns)

    def _end_traffic(self) -> None:
        while self._captures:
            self._captures.popitem()[1].close()
        while self._traffic:
            self._traffic.popitem()[1].close()

    def _restart(self, name: str) -> None:
        """Connect again after a connection gave up, as a job that starts anew would."""
        self._traffic.pop(name).close()
        self._restarts[name] = self._restarts.get(name, 0) + 1
        for key in [key for key in self._placed if key[0] == name]:
            del self._placed[key]
        self._traffic[name] = TransportTraffic(self.network, name, self.plan)

    def _tick(self, turn: int) -> None:
        now_ns = time.monotonic_ns()
        transports = {}
        paths: dict[str, list[list[int]]] = {}
        failed = []
        for name, traffic in self._traffic.items():
            if not traffic.flows:
                continue
            shown = traffic.flows[self._shown]
            news = traffic.news({shown.source: [shown.source_qp]})
            transports[name], broken = self._flows(name, traffic, news)
            paths[name] = news[shown.source]["paths"][str(shown.source_qp)]
            self._note_events(name, traffic, news)
            if broken:
                failed.append(name)
        self._last_paths = paths
        if turn % LINKS_EVERY == 1:
            self._read_links()
        self._look_at_cards()
        self._listener(
            {
                "t_ms": (now_ns - self.begun_ns) // 1_000_000,
                "transports": transports,
                "paths": paths,
                "links": self._links,
                "faults": self._active,
                "cards": [card.to_dict() for card in list(self._cards)[-12:]],
                "events": list(self._events)[-30:],
            }
        )
        for name in failed:
            self._restart(name)

    def _flows(
        self, name: str, traffic: TransportTraffic, news: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], bool]:
        flows = []
        failed = False
        total_sent = resent = 0
        for number, flow in enumerate(traffic.flows):
            at_target, at_source = news[flow.target], news[flow.source]
            placed = int(at_target["flows"][flow.target_qp]["placed"])
            t_ns = int(at_target["t_ns"])
            before = self._placed.get((name, number), (t_ns, placed))
            self._placed[name, number] = t_ns, placed
            elapsed = t_ns - before[0]
            rate = 8e9 * (placed - before[1]) / elapsed if elapsed > 0 else 0.0
            source = at_source["flows"][flow.source_qp]
            total_sent += source["sent"]
            resent += source["resent"]
            failed = failed or source["failed"] is not None
            flows.append([flow.source, flow.target, round(rate)])
        return {
            "label": LABELS[name],
            "flows": flows,
            "sent": total_sent,
            "resent": resent,
            "restarts": self._restarts.get(name, 0),
        }, failed

    def _note_events(
        self, name: str, traffic: TransportTraffic, news: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for host, answer in news.items():
            for event in answer["events"]:
                if event["name"] == "EvRetired":
                    kept = self._retired.setdefault((name, host), deque(maxlen=KEPT_RETIREMENTS))
                    kept.append((event["t_ns"], event["ev"]))
                self._events.append({"transport": name, "host": host, **event})

    def _read_links(self) -> None:
        """Read what each link carries now, [away from the hosts, towards them] in bit/s."""
        now_ns, counts = time.monotonic_ns(), bytes_carried(self.network)
        before_ns, before = self._carried
        self._carried = now_ns, counts
        if before:
            per_s = 8e9 / (now_ns - before_ns)
            # The upper end of every link is a switch's, so both directions are counted there.
            ends = [link.b.ifname for link in self.fabric.links]
            self._links = [
                [round(max(0, counts[end][way] - before[end][way]) * per_s) for way in (1, 0)] for end in ends
            ]

    def _watched(self) -> list[Watched]:
        found = []
        for name, traffic in self._traffic.items():
            retired = {}
            for (transport, host), kept in self._retired.items():
                if transport == name:
                    columns = np.array(kept, np.int64).reshape(-1, 2)
                    retired[host] = Retirements(columns[:, 0], columns[:, 1])
            for host in traffic.hosts:
                retired.setdefault(host, Retirements(np.zeros(0, np.int64), np.zeros(0, np.int64)))
            found.append(Watched(name, traffic.flows, retired))
        return found

    def _look_at_cards(self) -> None:
        for card in self._cards:
            if card.due:
                self._traces[card.number] = work_out(card, self._watched(), self._captures, self.fabric)
                card.looked()
        for number in [n for n in self._traces if n <= self._number - KEPT_CARDS]:
            del self._traces[number]


def describe(fault: Fault) -> str:
    """Return a fault in a few words."""
    words = {
        "blackhole": "silent cut",
        "loss": f"loses {fault.ratio:.2%}",
        "corruption": f"corrupts {fault.ratio:.2%}",
        "rate": f"{fault.ratio:.0%} of its rate left",
        "carrier": "unplugged",
        "port-down": "NIC port down",
        "delay": f"{fault.delay_ns / 1e6:g} ms longer",
        "flap": "flaps",
        "switch-death": "switch dead",
        "switch-reboot": "switch reboots",
        "plane-death": "plane dead",
    }
    way = "" if fault.direction == "both" else f", {fault.direction} only"
    return words.get(fault.kind, fault.kind) + way
