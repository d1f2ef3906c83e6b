"""The queue metadata of frames, compared with the kernel's queue."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4r

from mrclab.linux.errors import BadInputError
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.switches.ebpf.main import parse, port_queues
from mrclab.switches.ebpf.plan import Shape
from mrclab.switches.ebpf.runtime.interfaces import shapes_of
from mrclab.switches.spec import SwitchSpec
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import DATA, ROOT, Client, Namespace, read_p4info, receive, three_ports

pytestmark = pytest.mark.root
SIZE = 500
REPORT = struct.Struct("!BBIIII6s6s")


class Report:
    """The queue metadata that a frame carries. Times are in microseconds."""

    def __init__(self, frame: bytes) -> None:
        _, self.rid, self.enq, self.enq_depth, self.waited, self.deq_depth, *times = REPORT.unpack_from(frame)
        self.ingress, self.egress = (int.from_bytes(t, "big") for t in times)


def since(later: int, earlier: int) -> int:
    """Return the microseconds between two times. Times of 32 bits wrap every 71 minutes."""
    return (later - earlier) % (1 << 32)


def frame(port: int) -> bytes:
    return bytes([port]).ljust(SIZE, b"\0")


class Switch:
    """Ports 1 to 3 of a switch that runs queues.p4."""

    def __init__(self, namespace: Namespace, client: Client) -> None:
        self.ns = namespace
        self.client = client
        self.client.become_primary()
        self.client.set_pipeline(
            (DATA / "queues.json").read_bytes(), read_p4info(DATA / "queues.p4info.txtpb")
        )
        self.sockets = {i: namespace.packet_socket(f"h{i}") for i in (1, 2, 3)}

    def send(self, count: int, port: int = 2) -> None:
        for _ in range(count):
            self.sockets[1].send(frame(port))

    def reports(self, count: int, port: int = 2, timeout: float = 5) -> list[Report]:
        return [Report(f) for f in receive(self.sockets[port], count, timeout)]

    def backlog(self, interface: str = "s2") -> int:
        """Return the number of frames in the kernel's queue."""
        said = tc(self.ns, "-s", "-j", "qdisc", "show", "dev", interface, "root")
        return int(next(q["qlen"] for q in json.loads(said)))

    def close(self) -> None:
        for s in self.sockets.values():
            s.close()


def tc(ns: Namespace, *args: str) -> str:
    return subprocess.run(["tc", "-n", ns.name, *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports(request.param, namespace, tmp_path) as client:
        yield from running(namespace, client)


@pytest.fixture
def ebpf(namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        yield from running(namespace, client)


def running(namespace: Namespace, client: Client) -> Iterator[Switch]:
    switch = Switch(namespace, client)
    yield switch
    switch.close()


def test_a_port_without_a_queue_lets_nothing_wait(switch: Switch) -> None:
    for _ in range(20):
        switch.send(1)
        (report,) = switch.reports(1)
        assert (report.enq_depth, report.deq_depth) == (0, 0)
        assert report.waited < 100_000  # BMv2 is slow
        assert since(report.enq, report.ingress) < 100_000
        assert since(report.egress, report.enq) < 100_000


# 1,000 bytes a second: a frame takes half a second, so nothing leaves while a test looks. The first 2,000
# bytes, which are four frames, leave at once.
SLOW = ("tbf", "rate", "8kbit", "burst", "2000", "limit", "100000")
BURST_NS = 2 * 10**9


def let_go(switch: Switch) -> None:
    """Raise the rate, so that the kernel sends the waiting frames."""
    tc(switch.ns, "qdisc", "change", "dev", "s2", "root", "tbf", "rate", "80mbit", "burst", "20000",
       "limit", "100000")  # fmt: skip


def test_depth_and_wait_are_those_of_the_kernels_token_bucket(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", *SLOW)
    expect_shape(ebpf, Shape(1_000, BURST_NS))
    ebpf.send(30)
    waiting = ebpf.backlog()
    ebpf.send(1)
    let_go(ebpf)
    reports = ebpf.reports(31)
    assert waiting == 26
    assert [r.enq_depth for r in reports] == [0] * 4 + list(range(27))
    assert [r.deq_depth for r in reports] == [r.enq_depth for r in reports]
    # The fifth frame finds an empty bucket. Each frame waits half a second longer than the one before.
    began = reports[0].enq
    for i, r in enumerate(reports):
        passed = since(r.enq, began) if i > 3 else 0
        assert r.waited == pytest.approx(max(i - 3, 0) * 500_000 - passed, abs=1500)
        assert since(r.egress, r.enq) == pytest.approx(r.waited, abs=1)


def test_frames_arrive_at_the_predicted_time(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", "tbf", "rate", "200kbit", "burst", "1000", "limit",
       "100000")  # fmt: skip
    expect_shape(ebpf, Shape(25_000, 40_000_000))
    ebpf.send(40)
    late = []
    for _ in range(40):
        (report,) = ebpf.reports(1)
        late.append(time.monotonic_ns() // 1000 - report.egress)
    # The kernel's timer and this process add delays. No frame may come early, and not all may come late.
    assert -1000 < min(late) < 20_000


def expect_shape(switch: Switch, expected: Shape | None, port: int = 2) -> None:
    """Check the parameters of a port's queue, and wait until the switch uses them. None means no queue."""

    def shape() -> Shape | None:
        with TrafficControl() as control:
            index = ifindex_of(f"s{port}")
            return shapes_of(control, [index]).get(index)

    found = switch.ns.run(shape)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.rate, found.burst_ns) == (expected.rate, pytest.approx(expected.burst_ns, rel=0.01))
    # The switch receives the netlink message before it reads a later request.
    switch.client.read(p4r.Entity(table_entry=p4r.TableEntry()))


def test_a_class_of_htb_is_a_queue_as_mininet_sets_it(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", "handle", "5:0", "htb", "default", "1")
    slow = ("classid", "5:1", "htb", "rate", "8kbit", "burst", "2000", "cburst", "1000")
    tc(ebpf.ns, "class", "add", "dev", "s2", "parent", "5:0", *slow)
    expect_shape(ebpf, Shape(1_000, 10**9))
    ebpf.send(30)
    # htb sends while it has any token, so it sends one frame more than tbf.
    waiting = ebpf.backlog()
    tc(ebpf.ns, "class", "change", "dev", "s2", "classid", "5:1", "htb", "rate", "80mbit")
    depths = [r.enq_depth for r in ebpf.reports(30)]
    assert waiting == 27
    assert depths == [0] * 3 + list(range(27))


def test_what_is_lost_for_want_of_room_does_not_wait(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", "handle", "1:", *SLOW)
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "parent", "1:1", "pfifo", "limit", "6")
    expect_shape(ebpf, Shape(1_000, BURST_NS))
    ebpf.send(30)
    assert ebpf.backlog() == 6
    let_go(ebpf)
    depths = [r.enq_depth for r in ebpf.reports(10)]
    assert depths == [0] * 4 + list(range(6))
    ebpf.send(1)
    (later,) = ebpf.reports(1)
    assert later.enq_depth == 0


def test_a_removed_queue_gives_no_metadata(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", *SLOW)
    expect_shape(ebpf, Shape(1_000, BURST_NS))
    ebpf.send(12)
    tc(ebpf.ns, "qdisc", "del", "dev", "s2", "root")
    expect_shape(ebpf, None)
    ebpf.reports(4, timeout=0.5)
    ebpf.send(1)
    assert [(r.enq_depth, r.waited) for r in ebpf.reports(1)] == [(0, 0)]


def test_each_copy_asks_the_queue_of_its_own_port(ebpf: Switch) -> None:
    tc(ebpf.ns, "qdisc", "add", "dev", "s2", "root", *SLOW)
    expect_shape(ebpf, Shape(1_000, BURST_NS))
    group = p4r.Update(type=p4r.Update.INSERT)
    entry = group.entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = 1
    for port in (2, 3):
        entry.replicas.add(egress_port=port, instance=port)
    ebpf.client.write(group)
    ebpf.send(10, port=0)
    let_go(ebpf)
    assert [r.enq_depth for r in ebpf.reports(10, 2)] == [0] * 4 + list(range(6))
    assert [r.enq_depth for r in ebpf.reports(10, 3)] == [0] * 10


def test_the_command_line_gives_ports_what_bmv2s_set_queue_rate_gives_them(
    namespace: Namespace, tmp_path: Path
) -> None:
    for i in (1, 2, 3):
        namespace.pair(f"s{i}", f"h{i}")
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", "--device-id", "1"]
    command += [w for i in (1, 2, 3) for w in ("-i", f"{i}@s{i}")]
    command += [str(DATA / "queues.json"), "--", "--grpc-server-addr", "127.0.0.1:0"]
    command += ["--queue-rate", "2=50", "--queue-depth", "2=8"]
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace.name, *command], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("READY")
        one, two = namespace.packet_socket("h1"), namespace.packet_socket("h2")
        began = time.monotonic()
        for _ in range(30):
            one.send(frame(2))
        reports = [Report(f) for f in receive(two, 30, 1)]
        assert time.monotonic() - began > 0.16
        # The queue sends 50 frames a second of any size. One leaves at once, eight wait, the others are lost.
        assert [r.enq_depth for r in reports] == [0, *range(8)]
        assert reports[8].waited + since(reports[8].enq, reports[0].enq) == pytest.approx(160_000, abs=5_000)
        for s in (one, two):
            s.close()
    finally:
        process.terminate()
        assert process.wait(10) == 0
        if process.stdout is not None:
            process.stdout.close()
    assert "tbf" not in namespace.qdiscs()


def test_somebody_elses_qdisc_stays(namespace: Namespace) -> None:
    namespace.pair("s1", "h1")
    tc(namespace, "qdisc", "add", "dev", "s1", "root", *SLOW)
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", "--no-p4", "-i", "1@s1"]
    command += ["--", "--grpc-server-addr", "127.0.0.1:0", "--queue-rate", "50"]
    done = subprocess.run(
        ["ip", "netns", "exec", namespace.name, *command],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 2
    assert "interface s1 has a qdisc" in done.stderr.splitlines()[-1]
    assert "8Kbit" in namespace.qdiscs()


SPECS = [SwitchSpec("s", 7, {1: "a", 2: "b"})]


def test_a_port_counts_before_all() -> None:
    assert port_queues(SPECS, [(None, 100), (2, 5)], [(2, 3)]) == {(7, 1): (100, 64), (7, 2): (5, 3)}
    assert port_queues(SPECS, [(None, 100), (2, 0)], []) == {(7, 1): (100, 64)}
    assert port_queues(SPECS, [], []) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue-rate", "3=5"], "there is no port 3"),
        (["--queue-depth", "5"], "no --queue-rate"),
        (["--queue-rate", "5", "--queue-depth", "0"], "expects 1 to 1023"),
        (["--queue-rate", "fast"], "'fast' is not"),
    ],
)
def test_queues_that_cannot_be(arguments: list[str], message: str) -> None:
    with pytest.raises(BadInputError, match=message), contextlib.suppress(SystemExit):
        parse(["--no-p4", "-i", "1@a", "--", *arguments])
