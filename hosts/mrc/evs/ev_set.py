"""The entropy values (EVs) that a queue pair uses.

For each plane, a set has active EVs (in the rotation) and backup EVs. Its rules:
* Each packet takes the next EV of the rotation. The planes alternate. In each plane, every round has all
  active EVs in a new random order [P1 §2.1, SPEC §9.3.1]. An EV whose port is busy is used later.
* An EV in state SKIP is skipped once and then GOOD again. Each packet restores at most one EV [SPEC §9.3.1].
* A backup EV of the same plane replaces a retired EV [P1 §4]. If there is no backup EV, the other planes use
  fewer EVs: the numbers of active EVs of two planes in service differ by at most one.
* A plane is in service if both ends' ports are up and it has an EV that is neither ASSUMED_BAD nor DENIED.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import Final

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.events import (
    EvReplaced,
    EvRestored,
    EvRetired,
    EvSkipped,
    PlaneDown,
    PlaneUp,
    RetireReason,
)
from mrclab.hosts.mrc.evs.ev import TRANSITIONS, Ev, EvInput, HeadCache, PathPolicy, Plane, Probing
from mrclab.hosts.mrc.wire import EvMark
from mrclab.hosts.rdma.events import Event, EvState, Note, made_by
from mrclab.hosts.rdma.paths import RemotePaths

# Each packet needs these values. Constants of the module are found faster than members of a class.
_UNKNOWN: Final = EvState.UNKNOWN
_GOOD: Final = EvState.GOOD
_SKIP: Final = EvState.SKIP
_MARK_SKIP: Final = int(EvMark.SKIP_ONCE)
_MARK_ALWAYS: Final = int(EvMark.ALWAYS_SKIP)
_SENDABLE: Final = (_UNKNOWN, _GOOD)
_USABLE: Final = (_UNKNOWN, _GOOD, _SKIP)


class EvSet:
    """The EVs of one QP: it chooses an EV for each packet, retires EVs and restores them."""

    _ROUNDS = 8
    """Number of EVs of each plane in one schedule: a list of the next EVs, with the planes in turn."""

    def __init__(
        self,
        qpn: int,
        remote: RemotePaths,
        config: MrcConfig,
        rng: random.Random,
        emit: Callable[[Event], None],
        heads: HeadCache | None = None,
        policy: PathPolicy | None = None,
        note: Note | None = None,
    ) -> None:
        cache = HeadCache() if heads is None else heads
        self.qpn = qpn
        self.policy = policy
        """The path policy, which chooses the EVs; None: the rotation chooses them."""
        self.config = config
        self._rng, self._random = rng, rng.random
        self._emit, self._note = emit, note or made_by(emit)
        self.planes = [Plane(paths, config.rotation) for paths in remote.planes]
        self.by_value: dict[int, Ev] = {}
        self.bad: list[Ev] = []
        """EVs in state ASSUMED_BAD, which are probed."""
        self._probe_due_ns: int | None = None
        self._probe_stale = False
        share, extra = divmod(config.active_evs(), len(self.planes))
        for number, plane in enumerate(rng.sample(self.planes, len(self.planes))):
            paths = plane.distinct_paths()
            plane.quota = min(len(paths), max(1, share + (number < extra)))
            chosen = min(len(paths), plane.quota + config.spare_evs_per_plane)
            for index in sorted(rng.sample(range(len(paths)), chosen)):
                path = paths[index]
                ev = Ev(plane, path, cache.get(plane.paths, path))
                plane.evs.append(ev)
                self.by_value[ev.value] = ev
            plane.spares = list(plane.evs)
        self._schedule: list[Ev] = []
        self._position = 0
        self._restored: Ev | None = None
        """The EV that the present packet has restored from SKIP."""
        self._reverse_of = {plane.port: plane for plane in self.planes if config.reverse_evs == "set"}
        self._reverse_fresh_ns = 8 * config.reverse_probe_min_ns
        self.now_ns = 0
        """The present time. Callers set it before they request an EV."""
        self._balance()

    # Choosing the EV of a packet

    def pick(self, free_ports: Collection[int] | None = None, avoid: Ev | None = None) -> Ev | None:
        """Return an EV with a port in `free_ports` for the next packet. None: the packet must wait.

        `avoid` is the EV on which the packet was just lost; it is used only if there is no other EV. If no EV
        of any plane is usable, use the EV that failed longest ago, so that a QP never stops permanently.
        """
        if self.policy is not None:
            chosen = self._by_policy(self.policy, free_ports, avoid)
            return self._last_resort(free_ports, avoid) if chosen is None else chosen
        position = self._position
        if avoid is None and position < len(self._schedule):
            ready = self._schedule[position]
            if ready.ready and not ready.plane.waiting and (free_ports is None or ready.port in free_ports):
                self._position = position + 1
                return ready
        self._restored = None
        for _ in range(4 * len(self.planes) + 4):
            if self._position >= len(self._schedule) and not self._refill():
                break
            ev: Ev | None = self._schedule[self._position]
            self._position += 1
            waiting = ev.plane.waiting  # type: ignore[union-attr]
            if free_ports is not None and ev.port not in free_ports:  # type: ignore[union-attr]
                waiting.append(ev)  # type: ignore[arg-type]
                continue
            if waiting:
                waiting.append(ev)  # type: ignore[arg-type]
                ev = waiting.pop(0)
            if not ev.ready:  # type: ignore[union-attr]
                ev = self._substitute(ev)  # type: ignore[arg-type]
                if ev is None:
                    continue
            if ev is avoid:
                ev = self._next(ev.plane)  # type: ignore[union-attr]
                if ev is None or ev is avoid:
                    continue
            return ev
        return self._last_resort(free_ports, avoid)

    def _by_policy(
        self, policy: PathPolicy, free_ports: Collection[int] | None, avoid: Ev | None
    ) -> Ev | None:
        """Return the policy's choice among the usable EVs; None if no EV is usable.

        After each choice, the first EV that is SKIP becomes GOOD. So a marked EV is skipped at least once.
        """
        usable: list[Ev] = []
        skipping: Ev | None = None
        for plane in self.planes:
            for ev in plane.active:
                if ev.ready:
                    if ev is not avoid and (free_ports is None or ev.port in free_ports):
                        usable.append(ev)
                elif skipping is None and ev.state is _SKIP:
                    skipping = ev
        if not usable and skipping is None:
            return None
        chosen = policy.choose(self.now_ns, usable) if usable else None
        if skipping is not None:
            self._restored = None
            self._sit_out(skipping)
            if chosen is None and skipping.ready and (free_ports is None or skipping.port in free_ports):
                chosen = skipping
        return chosen

    def pick_aside(self, free_ports: Collection[int] | None = None, avoid: Ev | None = None) -> Ev | None:
        """Return a random EV for a probe, if possible not in the plane of `avoid`.

        The rotation does not change, so that data stays equally distributed.
        """
        planes = [
            plane
            for plane in self.planes
            if plane.up and plane.active and (free_ports is None or plane.port in free_ports)
        ]
        others = [plane for plane in planes if avoid is None or plane is not avoid.plane]
        if not others:
            return self.pick(free_ports, avoid)
        active = others[int(self._random() * len(others))].active
        return active[int(self._random() * len(active))]

    def _refill(self) -> bool:
        planes = [plane for plane in self.planes if plane.active and plane.up]
        if len(planes) == 1:
            # One plane needs no sort. Draw the random number that a sort would draw, so that the results of
            # a seed do not depend on this shortcut.
            self._random()
        else:
            planes.sort(key=lambda _: self._random())
        schedule: list[Ev] = []
        for _ in range(self._ROUNDS):
            for plane in planes:
                schedule.append(plane.draw(self._random))
        self._schedule = schedule
        self._position = 0
        return bool(schedule)

    def _next(self, plane: Plane) -> Ev | None:
        """Return the next EV in the plane's rotation that need not be skipped.

        If there is no such EV, return the EV that `_sit_out` set from SKIP to GOOD for this packet.
        """
        if not plane.active or not plane.up:
            return None
        for _ in range(2 * len(plane.active)):
            ev = plane.draw(self._random)
            if not ev.ready:
                self._sit_out(ev)
            elif ev is not self._restored:
                return ev
        restored = self._restored
        return restored if restored is not None and restored.plane is plane and restored.ready else None

    def _substitute(self, ev: Ev) -> Ev | None:
        """Return an EV of the same plane that replaces `ev`, because `ev` is not usable any more."""
        self._sit_out(ev)
        return self._next(ev.plane)

    def _sit_out(self, ev: Ev) -> None:
        """Skip an EV. If the EV is SKIP, set it to GOOD, but set only one EV to GOOD for each packet."""
        if (
            ev.state is _SKIP
            and ev.active
            and ev.plane.up
            and self._restored is None
            and self.now_ns >= ev.skip_until_ns
        ):
            self._move(ev, EvInput.TURN_SKIPPED)
            self._restored = ev

    def _last_resort(self, free_ports: Collection[int] | None, avoid: Ev | None) -> Ev | None:
        candidates = [ev for plane in self.planes if plane.up for ev in plane.candidates()]
        if any(ev.active and ev is not avoid for ev in candidates):
            candidates = [ev for ev in candidates if ev.active and ev is not avoid]
        if free_ports is not None:
            candidates = [ev for ev in candidates if ev.port in free_ports]
        if not candidates:
            return None
        return min(candidates, key=lambda ev: (ev is avoid, ev.doubt_ns, ev.failed_ns, self._random()))

    def reverse(self, value: int, port: int, free_ports: Collection[int] | None = None) -> Ev | None:
        """Return the EV for an answer to a packet that arrived on `port` with EV `value`.

        With the option `reverse_evs` = `set`, return the EV of this plane whose packet was last answered, if
        the answer is recent [P1 §2.4]. Otherwise return the packet's own EV. If the own EV is not usable or
        not in this set, return another EV of the plane, or any EV.
        """
        proven = self._reverse_of.get(port)
        if proven is not None:
            ev = proven.reverse
            if (
                ev is not None
                and proven.up
                and ev.usable
                and self.now_ns - proven.reverse_ns <= self._reverse_fresh_ns
                and (free_ports is None or port in free_ports)
            ):
                return ev
        ev = self.by_value.get(value)
        if ev is not None and ev.usable and ev.plane.up:
            if free_ports is None or ev.port in free_ports:
                return ev
        else:
            self._restored = None
            for plane in self.planes:
                if plane.port == port and plane.up and (free_ports is None or port in free_ports):
                    ev = self._next(plane)
                    if ev is not None:
                        return ev
        return self.pick(free_ports)

    def prove(self, now_ns: int, ev: Ev) -> None:
        """Record that the peer answered a packet on this EV. This end may now send answers on this EV."""
        ev.plane.reverse = ev
        ev.plane.reverse_ns = now_ns

    # Events of EVs

    def on_acked(self, ev: Ev) -> None:
        """Record that a packet on this EV was acknowledged. The first acknowledgement makes the EV GOOD."""
        if ev.state is _UNKNOWN:
            self._move(ev, EvInput.ACKED)

    def on_congestion(self, now_ns: int, ev: Ev, event: EvInput) -> None:
        """Record a CE mark or a trim on this EV."""
        trimmed = event is not EvInput.ECN
        if trimmed:
            ev.trimmed += 1
            if self.policy is not None:
                self.policy.on_trim(now_ns, ev)
        else:
            ev.ecn_marked += 1
        if not self.config.ev_health or ev.plane.skips_enough(self.config.skip_cap):
            return
        before = ev.state
        if self._move(ev, event) is _SKIP and before is not _SKIP:
            skip_ns = self.config.reading.skip_ns
            if skip_ns:
                ev.skip_until_ns = now_ns + skip_ns
            self._emit(EvSkipped(now_ns, self.qpn, ev.value, ev.port, trimmed))

    def on_sack(self, now_ns: int, value: int, mark: int) -> None:
        """Handle the EV that a SACK names, and the mark of the SACK."""
        if mark:
            self.on_mark(now_ns, value, mark)
        if self.policy is not None:
            ev = self.by_value.get(value)
            if ev is not None:
                self.policy.on_sack(now_ns, ev, mark != 0)

    def on_mark(self, now_ns: int, value: int, mark: int) -> None:
        """Handle the mark that a SACK has for an EV."""
        ev = self.by_value.get(value)
        if ev is None:
            return
        if mark == _MARK_SKIP:
            self.on_congestion(now_ns, ev, EvInput.ECN)
        elif mark == _MARK_ALWAYS:
            self.on_always_skip(now_ns, ev)

    def on_lost(self, now_ns: int, ev: Ev, psn: int, reason: RetireReason) -> None:
        """Retire an EV at once, because a packet on it was lost [P1 §2.1]."""
        ev.lost += 1
        ev.failed_ns = now_ns
        if ev.probing is not None:
            ev.probing.passed = 0
        if self.policy is not None:
            self.policy.on_loss(now_ns, ev)
        if not self._at_floor():
            self._retire(now_ns, ev, EvInput.LOST, psn, reason)

    def _at_floor(self) -> bool:
        """Return True if no EV may be retired: too few EVs are usable, or `ev_health` is False."""
        if not self.config.ev_health:
            return True
        floor = self.config.ev_min_active
        return floor > 0 and sum(plane.usable for plane in self.planes if plane.up) <= floor

    def on_always_skip(self, now_ns: int, ev: Ev) -> None:
        """Retire an EV, because the receiver asks for this with the mark ALWAYS_SKIP."""
        ev.failed_ns = now_ns
        if not self._at_floor():
            self._retire(now_ns, ev, EvInput.ALWAYS_SKIP, None, RetireReason.ALWAYS_SKIP)

    def deny(self, now_ns: int, ev: Ev) -> None:
        """Retire an EV that an administrator's denylist names [P1 §2.4]."""
        self._retire(now_ns, ev, EvInput.DENY, None, RetireReason.DENIED)

    def allow(self, now_ns: int, ev: Ev) -> None:
        """Remove an EV from the denylist."""
        if ev.state is EvState.DENIED:
            self._restore(now_ns, ev, EvInput.ALLOW)

    def on_probe_answer(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Record that a probe on this EV was answered. After enough answers in a row, restore the EV."""
        probing = ev.probing
        if probing is None:
            return
        probing.passed += 1
        probing.unanswered = None
        self._probe_stale = True
        probing.wait_ns = self.config.probe_interval_ns
        probing.due_ns = now_ns + probing.wait_ns
        if probing.passed >= self.config.probe_successes:
            skip = marked and self.config.reading.skip_after_marked_probe
            self._restore(now_ns, ev, EvInput.PROBES_PASSED_MARKED if skip else EvInput.PROBES_PASSED)

    def on_late_arrival(self, now_ns: int, ev: Ev) -> None:
        """Probe an EV at once, because a packet on it counted as lost, but has arrived."""
        if ev.probing is not None:
            ev.probing.wait_ns = self.config.probe_interval_ns
            ev.probing.due_ns = min(ev.probing.due_ns, now_ns)
            self._probe_stale = True

    # Probes of ASSUMED_BAD EVs

    def next_probe_ns(self) -> int | None:
        """Return when the next probe of an ASSUMED_BAD EV is due."""
        if self._probe_stale:
            dues = [ev.probing.due_ns for ev in self.bad if ev.plane.up and ev.probing is not None]
            self._probe_due_ns = min(dues, default=None)
            self._probe_stale = False
        return self._probe_due_ns

    def due_probes(self, now_ns: int, probe_timeout_ns: int) -> Iterable[Ev]:
        """Return the EVs to probe now, and set the time of each EV's next probe.

        An unanswered probe doubles the wait between probes. A probe counts as unanswered after this wait, but
        not before `probe_timeout_ns` has passed.
        """
        due = []
        self._probe_stale = True
        for ev in self.bad:
            probing = ev.probing
            if probing is not None and probing.due_ns <= now_ns and ev.plane.up:
                if probing.unanswered is not None:
                    probing.passed = 0
                    probing.wait_ns = min(2 * probing.wait_ns, self.config.probe_interval_max_ns)
                probing.due_ns = now_ns + max(probing.wait_ns, probe_timeout_ns)
                due.append(ev)
        return due

    # Planes that go out of service or come back

    def set_plane(self, now_ns: int, port: int, up: bool, *, remote: bool) -> None:
        """Take a plane into or out of service, because its peer port (`remote`) or local port changed."""
        for plane in self.planes:
            if plane.port != port or (plane.peer_up if remote else plane.local_up) == up:
                continue
            if remote:
                plane.peer_up = up
            else:
                plane.local_up = up
            self._emit((PlaneUp if up else PlaneDown)(now_ns, self.qpn, port, remote))
            self._refresh(plane.evs)
            self._probe_stale = True
            self._schedule, self._position = [], 0
            self._balance()

    # State changes of EVs

    def _move(self, ev: Ev, event: EvInput) -> EvState:
        ev.state = TRANSITIONS[ev.state, event]
        ev.ready = ev.active and ev.state <= _GOOD and ev.plane.up
        return ev.state

    def _refresh(self, evs: Iterable[Ev]) -> None:
        for ev in evs:
            ev.ready = ev.active and ev.state <= _GOOD and ev.plane.up

    def _retire(self, now_ns: int, ev: Ev, event: EvInput, psn: int | None, reason: RetireReason) -> None:
        before = ev.state
        state = self._move(ev, event)
        if state is before:
            return
        if before is EvState.ASSUMED_BAD:
            self.bad.remove(ev)
            ev.probing = None
            self._probe_stale = True
        if state is EvState.ASSUMED_BAD:
            self.bad.append(ev)
            if event is EvInput.LOST:
                ev.retired_ns = now_ns
            ev.probing = Probing(now_ns, self.config.probe_interval_ns)
            self._probe_stale = True
        if before not in _USABLE:
            return
        ev.retired += 1
        was_active = ev.active
        ev.active = ev.ready = False
        (ev.plane.active if was_active else ev.plane.spares).remove(ev)
        self._note(EvRetired, (now_ns, self.qpn, ev.value, ev.port, reason, psn))
        promoted = self._balance()
        for new in promoted:
            if was_active and new.plane is ev.plane:
                self._note(EvReplaced, (now_ns, self.qpn, ev.value, new.value, ev.port))
                break

    def _restore(self, now_ns: int, ev: Ev, event: EvInput) -> None:
        before = ev.state
        if self._move(ev, event) not in _USABLE or before in _USABLE:
            return
        if before is EvState.ASSUMED_BAD:
            self.bad.remove(ev)
            ev.probing = None
            self._probe_stale = True
            ev.retired_ns = -1
        ev.plane.spares.append(ev)
        self._emit(EvRestored(now_ns, self.qpn, ev.value, ev.port))
        self._balance()

    def _balance(self) -> list[Ev]:
        """Make the planes' numbers of active EVs differ by at most one; return the EVs that became active."""
        serving = [plane for plane in self.planes if plane.up and plane.usable]
        promoted: list[Ev] = []
        if not serving:
            return promoted
        floor = min(min(plane.quota, plane.usable) for plane in serving)
        for plane in serving:
            want = min(plane.quota, plane.usable, floor + 1)
            while len(plane.active) > want:
                self._lay_aside(plane)
            while len(plane.active) < want:
                promoted.append(self._promote(plane))
        return promoted

    def _lay_aside(self, plane: Plane) -> None:
        skipping = [ev for ev in plane.active if ev.state is _SKIP]
        ev = self._rng.choice(skipping or plane.active)
        plane.active.remove(ev)
        plane.spares.append(ev)
        ev.active = ev.ready = False

    def _promote(self, plane: Plane) -> Ev:
        sendable = [ev for ev in plane.spares if ev.state in _SENDABLE]
        ev = self._rng.choice(sendable or plane.spares)
        plane.spares.remove(ev)
        plane.active.append(ev)
        if plane.decks is None:
            # Add the EV at the end of the present round, so that the waiting EVs keep their turns.
            plane.order.append(ev)
        ev.active = True
        ev.ready = ev.state <= _GOOD and plane.up
        return ev
