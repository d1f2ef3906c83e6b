"""One switch between veth pairs, by a target or a hand-written BPF program. Outgoing frames are counted."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.blaster import Blaster
from mrclab.linux import bpf
from mrclab.linux.bpf_types import MapSpec, MapType
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.switches.ebpf.codegen.backend.worker import compile_ir, section
from mrclab.switches.ebpf.codegen.translation import SECTION
from mrclab.switches.spec import SwitchSpec
from mrclab.switches.target import select_target
from tests.support.switch_kit import Client, Namespace, forwarded, read_p4info, sid

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
OWN, NEXT = 1, 2  # the uSIDs of the switch and of the next switch, behind port 2
QUIET_S = 0.2  # if no frame arrives for so long, missing frames are lost
MACS = (0x0200_0000_0002, 0x0400_0000_0001)  # destination and source of frames from port 2


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Make a namespace, and delete it at the end."""
    ns = Namespace()
    try:
        yield ns
    finally:
        ns.delete()


@dataclass(frozen=True)
class Trial:
    """The numbers of sent and received frames, and the time of sending."""

    sent: int
    received: int
    seconds: float

    @property
    def lost(self) -> int:
        """The number of sent frames that were not received."""
        return self.sent - self.received

    @property
    def per_s(self) -> float:
        """The number of received frames per second of sending."""
        return self.received / self.seconds


def received(ns: Namespace, interface: str) -> int:
    """Return the number of frames that an interface has received since it was made."""

    def read() -> int:
        for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[1])
        raise LookupError(interface)

    return ns.run(read)


def pairs(ns: Namespace, count: int) -> None:
    """Make the veth pairs s1-h1, s2-h2 and so on."""
    for i in range(1, count + 1):
        ns.pair(f"s{i}", f"h{i}")


@dataclass(frozen=True)
class P4Switch:
    """A running switch: its client (already primary), its process, and its address in the namespace."""

    client: Client
    pid: int
    address: str

    def resident_bytes(self) -> int:
        """Return the resident set of the switch's process, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


@contextlib.contextmanager
def p4_switch(
    target: str, ns: Namespace, ports: int, program: tuple[Path, Path], directory: Path
) -> Iterator[P4Switch]:
    """Start a switch with a program (JSON, P4Info). Port i leads to the interface h{i} of the namespace."""
    pairs(ns, ports)
    json, info = program
    running = select_target(target)
    spec = SwitchSpec("s", 4, {i: f"s{i}" for i in range(1, ports + 1)})
    (switch,) = running.start([spec], netns=ns.name, log_dir=directory)
    try:
        with forwarded(ns, switch.grpc_address) as address:
            client = Client(address, 4)
            client.become_primary()
            client.set_pipeline(json.read_bytes(), read_p4info(info))
            yield P4Switch(client, running.pids()[0], switch.grpc_address)
            client.close()
    finally:
        running.stop()


def by_hand_maps(ns: Namespace, ways: dict[int, int]) -> list[bpf.Map]:
    """Create the maps of un.ll; ``ways`` maps a neighbour's uSID to the port that leads to it."""
    own = bpf.Map(MapSpec("own", MapType.ARRAY, 4, 8, 1))
    own.update(bytes(4), sid(OWN).to_bytes(16, "big")[:6] + bytes(2))
    hops = bpf.Map(MapSpec("hops", MapType.HASH, 8, 16, 64))
    for usid, port in ways.items():
        index = ns.run(lambda p=port: ifindex_of(f"s{p}"))
        value = struct.pack("=I", index) + b"".join(m.to_bytes(6, "big") for m in MACS)
        hops.update(sid(usid).to_bytes(16, "big")[:6] + bytes(2), value)
    return [own, hops]


@contextlib.contextmanager
def hand_written(ns: Namespace, ports: int) -> Iterator[int]:
    """Load un.ll, attach it to all ports, and yield its descriptor. un.ll sends frames for NEXT to port 2."""
    pairs(ns, ports)
    code = section(compile_ir((PROGRAMS / "un.ll").read_text()), SECTION)
    maps = by_hand_maps(ns, {NEXT: 2})
    fd = bpf.load_program(bpf.relocate(code, [m.fd for m in maps]), "un")

    def attach() -> None:
        with TrafficControl() as tc:
            for i in range(1, ports + 1):
                tc.add_clsact(ifindex_of(f"s{i}"))
                tc.add_filter(ifindex_of(f"s{i}"), fd, "un")

    ns.run(attach)
    yield fd
    for m in maps:
        m.close()


def trial(ns: Namespace, ways: Sequence[tuple[Blaster, str]], seconds: float, per_s: float = 0) -> Trial:
    """Send by all blasters at once, and count the frames on the interfaces until no more frames arrive."""
    before = {name: received(ns, name) for _, name in ways}
    for blaster, _ in ways:
        blaster.begin(seconds, per_s)
    sent = [blaster.end() for blaster, _ in ways]
    total = sum(s.frames for s in sent)
    return Trial(total, _settled(ns, before, total), max(s.seconds for s in sent))


def _settled(ns: Namespace, before: dict[str, int], most: int) -> int:
    """Wait until ``most`` frames arrived, or no frame for QUIET_S. Return the number of received frames."""
    last, last_change = -1, time.monotonic()
    while time.monotonic() < last_change + QUIET_S:
        now = sum(received(ns, name) - count for name, count in before.items())
        if now >= most:
            return now
        if now != last:
            last, last_change = now, time.monotonic()
    return last
