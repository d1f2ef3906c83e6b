"""The control API in the service: transitions of profiles, entries, refusals, events and probes."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.mrc.events import EvRestored, EvRetired, RetireReason
from mrclab.hosts.service import addresses
from mrclab.hosts.service.control import abi, control
from mrclab.hosts.service.control.abi import CcMask, EvOp, EvsMask, FormatMask, FormatMode, Mode, State
from mrclab.hosts.service.shared_memory import CONTROLS
from tests.support.nic_client import Program, Wire

GOOD, ASSUMED_BAD, DENIED, UNKNOWN = 1, 2, 4, 1 << 31
WIDTHS = (32, 16, 16)
FIELDS = ((32, 0xFD000000, 0, 0, 0), (16, 0x1000, 0, 3, 0x3), (16, 0x1400, 0, 1, 0x1))
BITS = 3


class Controller:
    """A program that calls the control API, with structures in this process's memory."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._kept: list[Any] = []

    def address(self, data: bytes) -> int:
        self._kept.append(ctypes.create_string_buffer(data, max(1, len(data))))
        return ctypes.addressof(self._kept[-1])

    def call(self, name: str, *arguments: int) -> Any:
        return self.program.call("CONTROL", CONTROLS.index(name) + 1, *arguments)[0]

    def format(self, state: State, mode: int = 0, widths: tuple[int, ...] = ()) -> None:
        mask = FormatMask.STATE | (FormatMask.MODE if mode else 0) | (FormatMask.OP if widths else 0)
        fields = self.address(bytes(widths))
        packed = abi.FORMAT.pack(state, 0, mode, abi.MODIFY, fields, len(widths), abi.VENDOR)
        self.call("MODIFY_FORMAT", 7, self.address(packed), mask)

    def evs(self, mask: int, number: int = 5, query: bool = False, **given: Any) -> tuple[Any, ...]:
        entries = given.get("entries", b"")
        array = self.address(entries or bytes(given.get("room", 0) * abi.ENTRY.size))
        count = len(entries) // abi.ENTRY.size or given.get("room", 0)
        fields = self.address(b"".join(abi.FIELD.pack(*field) for field in given.get("fields", ())))
        at = self.address(
            abi.EVS.pack(
                *(given.get("state", 0), 0, given.get("mode", 0), 7, given.get("count", 0)),
                *(given.get("least", 0), given.get("events", 0), given.get("op", 0), array, count),
                *(abi.MODIFY, fields, len(given.get("fields", ())), abi.VENDOR),
            )
        )
        try:
            self.call("QUERY_EVS" if query else "MODIFY_EVS", number, at, mask)
        finally:
            self.answer = abi.EVS.unpack(ctypes.string_at(at, abi.EVS.size))
        found = ctypes.string_at(array, min(count, self.answer[9]) * abi.ENTRY.size)
        return tuple(abi.ENTRY.iter_unpack(found))


def _entry(ev: int, port: int, new: int = 0, new_port: int = 0, state: int = 0, flags: int = 0) -> bytes:
    return abi.ENTRY.pack(abi.ev_array(ev, BITS), port, abi.ev_array(new, BITS), new_port, state, flags)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(control, "may_control", lambda _pid: True)
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def controller(wire: Wire) -> Controller:
    return Controller(Program(wire.a))


def _fails(code: int, work: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        work(*arguments, **named)
    assert caught.value.errno == code


def test_an_explicit_profile_goes_all_its_steps(controller: Controller) -> None:
    c = controller
    _fails(errno.EINVAL, c.format, State.ONLINE)
    _fails(errno.EINVAL, c.format, State.OFFLINE)
    c.format(State.OFFLINE, FormatMode.SRV6)
    _fails(errno.EINVAL, c.format, State.ONLINE)
    _fails(errno.E2BIG, c.format, State.ONLINE, widths=(200, 200))
    c.format(State.ONLINE, widths=WIDTHS)
    shape = EvsMask.STATE | EvsMask.MODE | EvsMask.FORMAT | EvsMask.COUNT | EvsMask.FIELDS_OP
    offline = {"state": State.OFFLINE, "mode": Mode.EXPLICIT, "count": 2}
    _fails(errno.EINVAL, c.evs, shape & ~EvsMask.FIELDS_OP, **offline)
    c.evs(shape, fields=FIELDS, **offline)
    online = {"state": State.ONLINE, "least": 1, "events": ASSUMED_BAD}
    last = EvsMask.STATE | EvsMask.MIN_ACTIVE | EvsMask.EVENTS
    _fails(errno.EINVAL, c.evs, last, **online)  # the profile has no EVs yet
    replacing = _entry(0, 0, 0b101, 1) + _entry(0, 0, 0b010, 2)
    c.evs(EvsMask.EV_OP, op=EvOp.REPLACE, entries=replacing)
    _fails(errno.EINVAL, c.evs, EvsMask.STATE, state=State.ONLINE)
    c.evs(last, **online)
    _fails(errno.EBUSY, c.format, State.OFFLINE)
    c.evs(EvsMask.EV_OP, op=EvOp.SET_STATE, entries=_entry(0b101, 1, state=DENIED))
    _fails(
        errno.ENOENT,
        c.evs,
        EvsMask.EV_OP,
        op=EvOp.SET_STATE,
        entries=_entry(0b010, 2, state=DENIED) + _entry(0b101, 2, state=DENIED),
    )
    found = c.evs(EvsMask.EV_OP, query=True, op=EvOp.QUERY_ARRAY, room=2)
    assert [(ev, port, state) for ev, port, _, _, state, _ in found] == [
        (abi.ev_array(0b101, BITS), 1, DENIED),
        (abi.ev_array(0b010, BITS), 2, DENIED),
    ]
    _fails(errno.E2BIG, c.evs, EvsMask.EV_OP, query=True, op=EvOp.QUERY_ARRAY, room=1)
    assert c.answer[9] == 2
    for state in (State.OFFLINE, State.INIT):
        c.evs(EvsMask.STATE, state=state)
    c.format(State.OFFLINE)
    c.format(State.INIT)


def test_generated_evs_can_be_denied_before_they_are_used(controller: Controller) -> None:
    c = controller
    c.format(State.OFFLINE, FormatMode.SRV6, WIDTHS)
    c.format(State.ONLINE)
    shape = EvsMask.STATE | EvsMask.MODE | EvsMask.FORMAT | EvsMask.COUNT | EvsMask.FIELDS_OP
    c.evs(shape, state=State.OFFLINE, mode=Mode.GENERATED, count=8, fields=FIELDS)
    c.evs(EvsMask.EV_OP, op=EvOp.SET_STATE, entries=_entry(0b111, 2, state=DENIED))
    c.evs(EvsMask.STATE | EvsMask.MIN_ACTIVE | EvsMask.EVENTS, state=State.ONLINE)
    found = c.evs(EvsMask.EV_OP, query=True, op=EvOp.QUERY_ARRAY, room=64)
    assert len(found) == 2 * 8
    assert [state for *_, state, _ in found] == [UNKNOWN] * 15 + [DENIED]


def test_the_nic_s_own_profile_shows_the_evs_of_queue_pairs_and_their_events(
    wire: Wire, controller: Controller
) -> None:
    c, program, peer = controller, controller.program, Program(wire.b)
    program.make_qp()
    peer.make_qp()
    program.connect(peer)
    peer.connect(program)
    c.evs(EvsMask.EVENTS, number=0, events=GOOD | ASSUMED_BAD)
    found = c.evs(EvsMask.EV_OP, number=0, query=True, op=EvOp.QUERY_ARRAY, room=64)
    assert {port for _, port, *_ in found} == {1, 2}
    _fails(errno.EPERM, c.evs, EvsMask.STATE, number=0, state=State.OFFLINE)
    (cq, *_), (fd,) = program.call("CREATE_CQ", 4, 0)
    os.close(fd)
    c.call("WATCH_EVS", cq)
    ev = int.from_bytes(found[0][0][:4], "big")
    for _ in range(3):
        wire.a.control.observe(EvRetired(0, program.qpn, ev, 0, RetireReason.LOSS, None))
        wire.a.control.observe(EvRestored(0, program.qpn, ev, 0))
    room = c.address(bytes(8 * abi.EVENT.size))
    assert c.call("POLL_EVS", cq, room, 8)[0] == 4
    events = list(abi.EVENT.iter_unpack(ctypes.string_at(room, 4 * abi.EVENT.size)))
    assert [state for *_, state in events] == [ASSUMED_BAD, GOOD, ASSUMED_BAD, GOOD]
    assert {(number, array, port) for number, array, port, *_ in events} == {(0, found[0][0], found[0][1])}
    wire.a.control.observe(EvRetired(0, program.qpn, ev, 0, RetireReason.LOSS, None))
    assert c.call("POLL_EVS", cq, room, 8)[0] == 1
    assert abi.EVENT.unpack(ctypes.string_at(room, abi.EVENT.size))[3] == 2  # events dropped before


@pytest.mark.parametrize(("late_ns", "answered"), [(400_000_000, 1), (600_000_000, 0)])
def test_the_timeout_of_a_probe_is_that_of_the_call(
    wire: Wire, controller: Controller, late_ns: int, answered: int
) -> None:
    c, program, peer = controller, controller.program, Program(wire.b)
    program.make_qp()
    peer.make_qp()
    program.connect(peer)
    peer.connect(program)
    found = c.evs(EvsMask.EV_OP, number=0, query=True, op=EvOp.QUERY_ARRAY, room=64)
    ours, theirs = (addresses.gids(nic.fabric, nic.host)[3] for nic in (wire.a, wire.b))
    request = abi.REQUEST.pack(7, ours, theirs, FormatMode.STEV, *found[0][:2], 0)
    batch = c.call("PROBE", 0, 0, c.address(request), 1, 500_000_000)[0]
    _fails(errno.EINVAL, c.call, "PROBE", 0, 0, c.address(request), 1, 1 << 32)
    frames = wire.a.work(wire.now_ns)
    wire.now_ns += late_ns
    for port, frame in frames:
        wire.b.endpoint.receive(port, frame, wire.now_ns)
    wire.run(2)
    room = c.address(bytes(abi.RESPONSE.size))
    assert tuple(c.call("PROBED", batch, room)[:2]) == (answered, 1 - answered)
    number, port, rtt_ns, _ = abi.RESPONSE.unpack(ctypes.string_at(room, abi.RESPONSE.size))
    assert (number, port) == (7 * answered, found[0][1] * answered)
    assert (rtt_ns >= late_ns) == bool(answered)


def test_congestion_control_is_chosen_by_name(controller: Controller) -> None:
    c = controller
    name, odd = c.address(b"uet-1.0-nscc\0"), c.address(b"another\0")
    for algorithm in (odd, 1):
        packed = c.address(abi.CC.pack(State.OFFLINE, 0, algorithm, 0, abi.VENDOR))
        with pytest.raises(OSError, match=r"Invalid argument|Bad address"):
            c.call("MODIFY_CC", 3, packed, CcMask.STATE | CcMask.ALGORITHM)
    packed = c.address(abi.CC.pack(State.OFFLINE, 0, name, 0, abi.VENDOR))
    c.call("MODIFY_CC", 3, packed, CcMask.STATE | CcMask.ALGORITHM)
    _fails(errno.EINVAL, c.call, "MODIFY_CC", 3, c.address(abi.CC.pack(2, 0, 0, 0, abi.VENDOR)), CcMask.STATE)
    config = c.address(abi.NSCC.pack(0, 4096, 9000, 0, 1.0, 2.0, 0.5, 0.8, 0.5, 1 << 20, 3, 10**6, 20_000))
    packed = c.address(abi.CC.pack(State.ONLINE, 0, 0, config, abi.VENDOR))
    c.call("MODIFY_CC", 3, packed, CcMask.STATE | CcMask.CONFIG)
    assert c.call("QUERY_CC", 3, packed, CcMask.CONFIG)[0] == 1
    assert abi.CC.unpack(ctypes.string_at(packed, abi.CC.size))[1] == State.ONLINE


def test_a_program_without_the_right_is_refused(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    c = Controller(Program(wire.a))
    monkeypatch.setattr(control, "may_control", lambda _pid: False)
    for name in CONTROLS:
        _fails(errno.EPERM, c.call, name)


@given(st.sampled_from(CONTROLS), st.lists(st.integers(0, (1 << 64) - 1), max_size=6), st.data())
def test_nonsense_is_an_error_and_no_more(name: str, arguments: list[int], data: st.DataObject) -> None:
    wire = Wire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "may_control", lambda _pid: True)
        c = Controller(Program(wire.a))
        size = 512
        words = data.draw(st.binary(min_size=size, max_size=size))
        here = data.draw(st.sampled_from([0, 1, 2]))
        given_arguments = [*arguments, *[0] * (6 - len(arguments))]
        reads = name.startswith(("MODIFY", "PROBE")) and name != "PROBED"
        given_arguments[here] = c.address(words) if reads else given_arguments[here]
        with suppress(OSError):
            c.call(name, *given_arguments)
        assert c.program.call("QUERY_PORT")[0][0] == 1
    wire.close()
