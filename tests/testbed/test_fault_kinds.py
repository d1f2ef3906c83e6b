"""Every kind of fault on a running fabric: its effect on frames, and a complete undo."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from mrclab.faults.kinds import KINDS, Fault
from mrclab.linux import namespaces
from mrclab.linux.errors import InputError, MachineError
from mrclab.testbed.delays.long_wire import LongWires, WireEnd, wire_ends
from mrclab.testbed.lab import Lab
from mrclab.testbed.links import cables
from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric

TINY = load_fabric("tiny")
LINK, SPINE, PORT, PLANE = "p0-t0-0:p0-t1-0", "p0-t1-0", "h0-eth0", "p0"
FRAMES = 40
QUIET_S = 0.2
PATIENCE_S = 5.0


Body = Callable[[Callable[["Bench"], None]], None]


class Wire:
    """A sender and receiver of frames over a given path between two hosts."""

    def __init__(self, lab: Lab, src: str, dst: str) -> None:
        self._lab = lab
        self._src, self._dst = lab.fabric.host(src), lab.fabric.host(dst)
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        for host in (self._src, self._dst):
            with namespaces.inside(lab.network.names.host(host.name)):
                for port in host.ports:
                    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
                    s.bind((port.ifname, 0x86DD))
                    s.setblocking(False)
                    self._sockets[host.name, port.plane] = s

    def close(self) -> None:
        for s in self._sockets.values():
            s.close()

    def _frame(self, plane: int, t1: int, number: int) -> bytes:
        fabric = self._lab.fabric
        (path,) = (p for p in fabric.paths(self._src.name, self._dst.name) if p.plane == plane and p.t1 == t1)
        port = self._src.ports[plane]
        payload = b"\0" * 20 + number.to_bytes(4, "big") + b"fault test".ljust(200, b".")
        ipv6 = b"\x60\0\0\0" + len(payload).to_bytes(2, "big") + b"\x3b\x40"
        ipv6 += port.address.packed + path.outer_dst.packed
        return port.t0_mac + port.mac + b"\x86\xdd" + ipv6 + payload

    def received(self, plane: int = 0, t1: int = 0, frames: int = FRAMES) -> list[bytes]:
        """Send frames over a path. Return all frames that arrive, until no more frames come for a while."""
        receiver = self._sockets[self._dst.name, plane]
        while _take(receiver):
            pass
        sent = [self._frame(plane, t1, number) for number in range(frames)]
        for frame in sent:
            try:
                self._sockets[self._src.name, plane].send(frame)
            except OSError:
                continue  # the port is down
        found: list[bytes] = []
        end = time.monotonic() + QUIET_S
        while len(found) < frames and time.monotonic() < end:
            if frame := _take(receiver):
                found.append(frame)
                end = time.monotonic() + QUIET_S
        return found

    def soon(self, plane: int = 0, t1: int = 0) -> bool:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if len(self.received(plane, t1, 5)) == 5:
                return True
        return False


def _take(s: socket.socket) -> bytes:
    try:
        return s.recv(9216)
    except (BlockingIOError, OSError):
        return b""


@dataclasses.dataclass
class Bench:
    lab: Lab
    wire: Wire

    def condition(self) -> object:
        """Return everything that a fault may change and that undoing it must restore."""
        names = self.lab.network.names
        interfaces = []
        for namespace in (names.fabric, *(names.host(h.name) for h in self.lab.fabric.hosts)):
            said = subprocess.run(
                ["ip", "-j", "-n", namespace, "link"], capture_output=True, text=True, check=True
            ).stdout
            interfaces += [
                (i["ifname"], sorted(i["flags"]), i["operstate"], i["mtu"], i["qdisc"])
                for i in json.loads(said)
            ]
            said = subprocess.run(
                ["tc", "-n", namespace, "qdisc"], capture_output=True, text=True, check=True
            ).stdout
            interfaces.append(sorted(said.splitlines()))
        return interfaces, self.lab.controller.verify(), self.lab.faults.active, self.fault_entries()

    def assert_soon(self, condition: object) -> None:
        """Wait until `self.condition()` equals `condition`. The process that delays frames may end late."""
        end = time.monotonic() + PATIENCE_S
        while self.condition() != condition and time.monotonic() < end:
            continue
        assert self.condition() == condition

    def fault_entries(self) -> int:
        """Return the number of entries in the fault tables of all switches, read from the switches."""
        import finsy as fy

        from mrclab.controller.telemetry import read_all

        async def count() -> int:
            found = 0
            for switch in self.lab.controller._ready.result().switches.values():
                tables = [fy.P4TableEntry(f"{way}_fault.fault") for way in ("ingress", "egress")]
                found += sum(not e.is_default_action for e in await read_all(switch, tables))
            return found

        return self.lab.controller._call(count())


@pytest.fixture(scope="module")
def bench_call(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Body]:
    """Yield a function that runs tests in the thread of one testbed. All tests of this module share it."""
    import queue
    import threading

    work: queue.Queue[Callable[[Bench], None] | None] = queue.Queue()
    results: queue.Queue[BaseException | None] = queue.Queue()
    names = Names.of_prefix(f"t{os.urandom(3).hex()}")

    def main() -> None:
        try:
            with Lab.up(TINY, "ebpf", tmp_path_factory.mktemp("lab"), names=names) as lab:
                bench = Bench(lab, Wire(lab, "h0", "h2"))
                results.put(None)
                while (body := work.get()) is not None:
                    try:
                        body(bench)
                        results.put(None)
                    except BaseException as error:
                        results.put(error)
                bench.wire.close()
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)

    def call(body: Callable[[Bench], None]) -> None:
        work.put(body)
        if (error := results.get()) is not None:
            raise error

    thread = threading.Thread(target=main)
    thread.start()
    if (error := results.get()) is not None:
        thread.join()
        raise error
    yield call
    work.put(None)
    assert results.get() is None
    thread.join()


def _silent(bench: Bench) -> None:
    assert bench.wire.received() == []
    assert len(bench.wire.received(t1=1)) == FRAMES


def _some(bench: Bench) -> None:
    assert 0 < len(bench.wire.received(frames=400)) < 400


def _corrupt(bench: Bench) -> None:
    frames = bench.wire.received()
    sources = {frame[22:38] for frame in frames}
    assert len(frames) == FRAMES
    assert len(sources) > 1, "no bit was flipped"


def _slower(bench: Bench) -> None:
    assert 0 < len(bench.wire.received(frames=400)) < 400


DELAY_NS = 50_000_000


def _soonest(wire: Wire, t1: int = 0) -> int:
    """Return the shortest of several times for receiving all frames, because a busy machine may be slow."""
    times = []
    for _ in range(10):
        start = time.monotonic_ns()
        assert len(wire.received(t1=t1)) == FRAMES
        times.append(time.monotonic_ns() - start)
    return min(times)


def _later(bench: Bench) -> None:
    home = Wire(bench.lab, "h2", "h0")
    for wire in (bench.wire, home):
        start = time.monotonic_ns()
        frames = wire.received()
        assert time.monotonic_ns() - start > DELAY_NS
        assert frames == sorted(frames, key=lambda frame: frame[74:78])
        assert len(frames) == FRAMES
    home.close()
    assert _soonest(bench.wire, t1=1) < DELAY_NS


def _port_dead(bench: Bench) -> None:
    assert bench.wire.received() == bench.wire.received(t1=1) == []
    assert len(bench.wire.received(plane=1)) == FRAMES


def _comes_and_goes(bench: Bench) -> None:
    counts = []
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and not {0, 3} <= set(counts):
        counts.append(len(bench.wire.received(frames=3)))
    assert {0, 3} <= set(counts)


def _corrupts_and_goes_dark(bench: Bench) -> None:
    dark = corrupt = False
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and not (dark and corrupt):
        frames = bench.wire.received()
        dark = dark or not frames
        corrupt = corrupt or len({frame[22:38] for frame in frames}) > 1  # a bit of an address was flipped
    assert dark
    assert corrupt


def _back_by_itself(bench: Bench) -> None:
    assert bench.wire.soon()


EFFECTS: dict[str, tuple[Fault, Callable[[Bench], None]]] = {
    "blackhole": (Fault("blackhole", LINK), _silent),
    "loss": (Fault("loss", LINK, ratio=0.3), _some),
    "corruption": (Fault("corruption", LINK), _corrupt),
    "rate": (Fault("rate", LINK, ratio=0.0001), _slower),
    "carrier": (Fault("carrier", LINK), _silent),
    "delay": (Fault("delay", LINK, delay_ns=DELAY_NS), _later),
    "port-down": (Fault("port-down", PORT), _port_dead),
    "flap": (Fault("flap", LINK, period_ns=600_000_000, down_ns=300_000_000), _comes_and_goes),
    "failing-optic": (
        Fault("failing-optic", LINK, ratio=1.0, period_ns=600_000_000, down_ns=300_000_000),
        _corrupts_and_goes_dark,
    ),
    "switch-death": (Fault("switch-death", SPINE), _silent),
    "switch-reboot": (Fault("switch-reboot", SPINE, down_ns=100_000_000), _back_by_itself),
    "plane-death": (Fault("plane-death", PLANE), _port_dead),
}


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_has_its_effect_and_undoing_it_leaves_nothing(kind: str, bench_call: Body) -> None:
    fault, effect = EFFECTS[kind]

    def body(bench: Bench) -> None:
        faults = bench.lab.faults
        before = bench.condition()
        assert len(bench.wire.received()) == FRAMES
        faults.prepare(fault)
        start = time.monotonic_ns()
        moment = faults.apply(fault)
        assert start <= moment.t_before_ns < moment.t_after_ns <= time.monotonic_ns()
        assert faults.active == {fault.where: fault}
        try:
            effect(bench)
        finally:
            healed = faults.undo(fault.where)
        assert moment.t_after_ns < healed.t_before_ns <= healed.t_after_ns <= time.monotonic_ns()
        assert bench.wire.soon()
        bench.assert_soon(before)

    bench_call(body)


@pytest.mark.root
@pytest.mark.parametrize(
    ("direction", "there", "back"), [("up", 0, FRAMES), ("down", FRAMES, 0), ("both", 0, 0)]
)
def test_one_direction_only(direction: str, there: int, back: int, bench_call: Body) -> None:
    def body(bench: Bench) -> None:
        home = Wire(bench.lab, "h2", "h0")
        bench.lab.faults.apply(Fault("blackhole", LINK, direction=direction))  # type: ignore[arg-type]
        try:
            assert (len(bench.wire.received()), len(home.received())) == (there, back)
        finally:
            bench.lab.faults.undo(LINK)
            home.close()

    bench_call(body)


def _host_link(lab: Lab) -> tuple[WireEnd, ...]:
    cable = next(c for c in cables(lab.fabric, lab.network.names) if c.a.ifname == PORT)
    return wire_ends(cable, DELAY_NS)


def _lengthened(lab: Lab, *, egress: bool = False) -> LongWires:
    wire = LongWires(_host_link(lab), egress=egress)
    wire.begin()
    return wire


@pytest.mark.root
@pytest.mark.parametrize("egress", [False, True])
def test_a_link_of_a_host_is_made_longer_without_netem(egress: bool, bench_call: Body) -> None:
    def body(bench: Bench) -> None:
        home = Wire(bench.lab, "h2", "h0")
        before = bench.condition()
        wire = _lengthened(bench.lab, egress=egress)
        for way in (bench.wire, home):
            start = time.monotonic_ns()
            assert len(way.received()) == FRAMES
            assert time.monotonic_ns() - start > DELAY_NS
        wire.close()
        assert _soonest(bench.wire) < DELAY_NS
        home.close()
        bench.assert_soon(before)

    bench_call(body)


@pytest.mark.root
def test_a_longer_wire_whose_process_is_killed_leaves_nothing(bench_call: Body) -> None:
    def body(bench: Bench) -> None:
        before = bench.condition()
        wire = _lengthened(bench.lab)
        wire.kill()
        bench.assert_soon(before)
        assert len(bench.wire.received()) == FRAMES

    bench_call(body)


@pytest.mark.root
def test_a_longer_wire_whose_process_somebody_killed_can_be_undone(bench_call: Body) -> None:
    def body(bench: Bench) -> None:
        before = bench.condition()
        wire = _lengthened(bench.lab)
        os.kill(wire.pid, signal.SIGKILL)
        os.waitid(os.P_PID, wire.pid, os.WEXITED | os.WNOWAIT)
        before_ns, after_ns = wire.close()
        assert wire.since_ns[1] == before_ns < after_ns
        assert bench.wire.soon()
        bench.assert_soon(before)  # the kernel removes the interfaces a moment later

    bench_call(body)


@pytest.mark.root
def test_a_wire_that_cannot_be_made_longer_is_refused_in_one_line(bench_call: Body) -> None:
    def body(bench: Bench) -> None:
        before = bench.condition()
        end = _host_link(bench.lab)[0]
        with pytest.raises(MachineError, match=r"no sch_netem.*boot Linux 6.6") as refusal:
            LongWires([dataclasses.replace(end, ifname="nobody0")]).begin()
        assert "\n" not in str(refusal.value)
        assert bench.condition() == before

    bench_call(body)


@pytest.mark.root
def test_what_is_prepared_and_never_made_leaves_nothing(bench_call: Body) -> None:
    """Two delays of a link can be prepared at the same time. A delay that never begins leaves no trace."""

    def body(bench: Bench) -> None:
        faults, before = bench.lab.faults, bench.condition()
        wanted = [Fault("delay", LINK, delay_ns=n * DELAY_NS) for n in (1, 2)]
        for fault in wanted:
            faults.prepare(fault)
        for fault in wanted:
            faults.wait_prepared(fault)
        faults.apply(wanted[0])
        _later(bench)
        with pytest.raises(InputError, match="faulty already"):
            faults.apply(wanted[1])
        faults.undo(LINK)
        faults.prepare(wanted[1])
        faults.drop_prepared()
        bench.assert_soon(before)

    bench_call(body)


@pytest.mark.root
def test_what_is_faulty_or_dead_already_is_refused(
    bench_call: Body,
) -> None:
    def body(bench: Bench) -> None:
        faults = bench.lab.faults
        before = bench.condition()
        faults.apply(Fault("switch-death", SPINE))
        for other in (Fault("switch-death", SPINE), Fault("plane-death", PLANE), Fault("loss", LINK)):
            with pytest.raises(InputError, match="already: restore it first"):
                faults.apply(other)
        faults.undo(SPINE)
        with pytest.raises(InputError, match=f"{SPINE} has no fault to undo"):
            faults.undo(SPINE)
        assert bench.condition() == before

    bench_call(body)


@pytest.mark.root
def test_a_broken_link_stays_broken_when_its_switch_boots(
    bench_call: Body,
) -> None:
    def body(bench: Bench) -> None:
        faults = bench.lab.faults
        before = bench.condition()
        faults.apply(Fault("blackhole", LINK))
        faults.apply(Fault("switch-death", "p0-t0-0"))
        faults.undo("p0-t0-0")
        assert bench.wire.soon(t1=1)
        _silent(bench)
        assert list(faults.undo_all()) == [LINK]
        assert bench.wire.soon()
        assert bench.condition() == before

    bench_call(body)


@pytest.mark.root
def test_a_switch_comes_back_empty_and_counts_from_zero(
    bench_call: Body,
) -> None:
    def body(bench: Bench) -> None:
        bench.wire.received()
        was = bench.lab.controller.programmings[SPINE]
        assert sum(c.packets for c in bench.lab.controller.counters()[SPINE].rx.values()) > 0
        bench.lab.faults.apply(Fault("switch-death", SPINE))
        with pytest.raises(grpc.RpcError):  # the undo fails, because the switch does not answer
            bench.lab.fault_tables._write(SPINE, [])
        bench.lab.faults.undo(SPINE)
        assert bench.lab.controller.programmings[SPINE] == was + 1
        assert sum(c.packets for c in bench.lab.controller.counters()[SPINE].rx.values()) == 0

    bench_call(body)


@pytest.mark.root
def test_a_write_that_fails_half_way_leaves_no_half_of_a_fault(
    bench_call: Body,
) -> None:
    def body(bench: Bench) -> None:
        tables = bench.lab.fault_tables
        # An entry of another controller blocks one direction.
        one_way = Fault("blackhole", LINK, direction="down")
        tables.insert(one_way)
        with pytest.raises(grpc.RpcError):
            bench.lab.faults.apply(Fault("blackhole", LINK))
        assert bench.lab.faults.active == {}
        assert bench.fault_entries() == 1
        tables.delete(one_way)
        assert bench.fault_entries() == 0
        assert len(bench.wire.received()) == FRAMES

    bench_call(body)
