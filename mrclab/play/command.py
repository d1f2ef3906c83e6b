"""``mrclab live --target sim``: serve the live page with the simulator, in slow motion, without root."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields
from typing import Any, Final

from mrclab.faults.kinds import ALL_KINDS, Fault
from mrclab.linux.errors import InputError, MrclabError
from mrclab.live.page_requests import PageRequests
from mrclab.live.recording import Recording
from mrclab.live.server import Hub, application
from mrclab.live.web import (
    LOOPBACK,
    access_for,
    address_of,
    listener_on,
    print_addresses,
    require_port,
    serve_session,
)
from mrclab.play.scene import Scene, scene_of
from mrclab.play.session import Play
from mrclab.topologies import load_fabric
from mrclab.topologies.model import require_two_tiers
from mrclab.version import version

FRAME_S: Final = 1 / 15
SHARE: Final = 0.8
"""The share of real time that the simulation may use. If this is not enough, virtual time passes more slowly
than the viewers chose."""
USUAL_TOPOLOGY: Final = "lab"


class Paced:
    """A simulation in steps of one page update. The viewers choose how fast its virtual time passes."""

    def __init__(self, play: Play, listener: Callable[[dict[str, Any]], None]) -> None:
        self.play = play
        self.gone: str | None = None
        self._listener = listener
        self._requests = PageRequests(FRAME_S)
        self._paused = False

    @property
    def topology(self) -> str:
        """The name of the fabric."""
        return self.play.fabric.name

    def plan_document(self) -> dict[str, Any]:
        """Return the present traffic in JSON types."""
        return self.play.scene.to_dict()

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` soon in the session's thread, and return a future of its result."""
        return self._requests.do(work)

    def stop(self) -> None:
        """End ``run`` after the present page update."""
        self._requests.stop()

    def make_fault(self, fault: Fault) -> dict[str, Any]:
        """Make a fault now. Raise InputError if this fabric cannot have the fault."""
        names = ("kind", "where", *(ALL_KINDS[fault.kind].takes))
        usual = {field.name: field.default for field in fields(Fault)}
        given = {name: getattr(fault, name) for name in usual if getattr(fault, name) != usual[name]}
        return self.play.make_fault({**{name: getattr(fault, name) for name in names}, **given})

    def undo(self, where: str | None) -> dict[str, Any]:
        """Undo the fault at a place, or all faults. Raise InputError if there is no such fault."""
        return self.play.undo(where)

    def set_traffic(self, plan: Scene) -> dict[str, Any]:
        """Begin again with other traffic. Raise InputError if the traffic does not fit the fabric."""
        return self.play.set_scene(plan)

    def set_mapper(self, on: bool) -> dict[str, Any]:
        """Raise InputError, because Clustermapper does not run in a simulation."""
        raise InputError("Clustermapper needs a live target")

    def show(self, flow: int) -> dict[str, Any]:
        """Choose the flow whose paths are shown. Raise InputError if there is no such flow."""
        return self.play.show(flow)

    def packets(self, number: int, transport: str) -> dict[str, Any]:
        """Return the transmissions around the fault of a card. Raise InputError if they are not stored."""
        return self.play.packets(number, transport)

    def counters(self, switch: str) -> dict[str, Any]:
        """Return the counters of a switch. Raise InputError if there is no such switch."""
        return self.play.counters(switch)

    def evs(self, source: str, target: str) -> list[list[Any]]:
        """Return the paths between two hosts. Raise InputError if there are no such hosts."""
        return self.play.evs(source, target)

    def busiest(self, transport: str) -> str | None:
        """Return a T0-T1 link that the shown flow of a transport uses now, or None if there is none."""
        return self.play.busiest(transport)

    def kept_bytes(self) -> dict[str, int]:
        """Return an empty dict, because no captures are kept."""
        return {}

    def set_pace(self, given: Any) -> dict[str, Any]:
        """Set the pace (``ns_per_s``) or ``paused`` of the simulation. Raise InputError on bad values."""
        if "paused" in given:
            if not isinstance(given["paused"], bool):
                raise InputError("paused is true or false")
            self._paused = given["paused"]
            self._tell()  # so that every page shows that time stands still, also a page loaded later
        if "ns_per_s" in given:
            self.play.set_pace(given["ns_per_s"])
        return {"pace": self.play.pace, "paused": self._paused}

    def run(self) -> None:
        """Work until ``stop`` is called."""
        try:
            due = time.monotonic()
            while not self._requests.stopping:
                self._requests.answer_until(due)
                begun = time.monotonic()
                if not self._paused:
                    self._turn(begun)
                due = max(due + FRAME_S, time.monotonic())
        except MrclabError as error:
            self.gone = str(error)
        finally:
            self._listener({"over": self.gone or "the session has ended"})
            self._requests.refuse_rest()

    def _turn(self, begun_s: float) -> None:
        """Simulate until the next page update, and send the update. On a slow machine, simulate less time."""
        play = self.play
        step_ns = max(1, round(play.pace * FRAME_S))
        end_ns = play.now_ns + step_ns
        part_ns = max(1, step_ns // 8)
        while play.now_ns < end_ns and time.monotonic() - begun_s < SHARE * FRAME_S:
            play.advance(min(end_ns, play.now_ns + part_ns))
        self._tell()

    def _tell(self) -> None:
        frame = self.play.frame()
        self._listener({**frame, "sim": {**frame["sim"], "paused": self._paused}})


def live_simulated(args: argparse.Namespace) -> int:
    """Serve the page until a signal comes. Raise InputError or MachineError before anything is started."""
    require_port(args.port)
    if args.program is not None:
        raise InputError("--program is for a live target: the simulator has its own switches")
    name = args.topology or USUAL_TOPOLOGY
    fabric = load_fabric(name)
    require_two_tiers(fabric, "the page draws T0s and T1s: run a scenario with --target sim")
    play = Play(Scene(fabric=fabric.name), fabric)
    with listener_on(args.listen or LOOPBACK, args.port) as listener:
        access = access_for(everybody=args.listen is not None)
        recording = Recording(play.about(version()))
        hub = Hub(recording)
        session = Paced(play, hub.put)
        app = application(
            session,
            hub,
            recording,
            access,
            read_traffic=lambda data: scene_of(data, play.scene),
            wishes={"pace": session.set_pace},
        )
        print(f"simulated, in slow motion: {play.pace / 1e3:g} us of {name} in a second")
        print_addresses(address_of(listener), access)
        serve_session(app, listener, hub, session)
    return 0
