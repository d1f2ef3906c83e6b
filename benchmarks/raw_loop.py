"""The speed of this machine's network without a protocol: the reference for the endpoint's figures.

    python benchmarks/raw_loop.py [--seconds 3] [--rounds 5] [--uplinks 16] [--target ebpf]

Needs root. Brings up a separate fabric and takes it down. It has 4 planes with links of 10 Gbit/s, so that
only the CPUs limit the rate. A frame crosses three switches. Methods:

* frames/s: one process sends frames as long as MRC data packets (4,096 B of payload) over all paths of all
  planes in turn, as fast as AF_PACKET accepts them. Another process counts them. The result of a round is the
  number of received frames per second, between the first and the last frame.
* round trip: a frame as long as an 8-byte write is sent, and the other end sends a frame back. Then the next
  frame is sent. The results are the median and the 99th percentile of a round.

Both processes run Python, each on a separate CPU if there are two, with the real-time priority that a
NIC's process has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.results import head, machine, row  # noqa: E402
from mrclab.hosts.mrc.packets import FrameOptions, prefix  # noqa: E402
from mrclab.hosts.mrc.wire import METH_LEN  # noqa: E402
from mrclab.hosts.nic.ports import Receiver, TransmitPort, sharpen_timers  # noqa: E402
from mrclab.hosts.nic.routes import nic_addresses, remote_paths  # noqa: E402
from mrclab.hosts.rdma.frames import (  # noqa: E402
    BTH_LEN,
    ICRC_LEN,
    RETH_LEN,
    UDP_LEN,
    UDP_PORT,
    traffic_class,
)
from mrclab.linux.scheduling import take_cpu  # noqa: E402
from mrclab.testbed.names import PREFIX_VARIABLE, Names  # noqa: E402
from mrclab.testbed.network import FabricNetwork  # noqa: E402
from mrclab.topologies import Fabric  # noqa: E402

FROM, TO = "h0", "h1"
PAYLOAD, SMALL = 4096, 8
QUIET_S = 0.5
TOPOLOGY = """\
name: bench
planes: 4
t0: 2
t1: {uplinks}
hosts: 2
links:
  host: {{rate: 10 Gbit/s}}
  fabric: {{rate: 10 Gbit/s}}
"""


@contextlib.contextmanager
def running_fabric(uplinks: int, target: str) -> Iterator[FabricNetwork]:
    """Bring up a fabric with this many paths per plane between h0 and h1, under a separate prefix."""
    names = Names.of_prefix(f"b{os.urandom(3).hex()}")
    environment = {**os.environ, PREFIX_VARIABLE: names.prefix}

    def mrclab(*words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "mrclab", *words],
            check=True,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
        )

    with tempfile.TemporaryDirectory() as folder:
        topology = Path(folder) / "bench.yaml"
        topology.write_text(TOPOLOGY.format(uplinks=uplinks))
        try:
            mrclab("up", "--topology", str(topology), "--target", target)
            yield FabricNetwork.attached(names)
        finally:
            mrclab("clean")


@dataclass(frozen=True)
class Raw:
    """The results of a round."""

    frames_per_s: float
    sent: int
    received: int


def frames_of(fabric: Fabric, source: str, target: str, payload: int) -> list[tuple[int, bytes]]:
    """Return a plane and a frame as long as a data packet for each path, taking the planes in turn."""
    options = FrameOptions(UDP_PORT, 64, True)
    length = UDP_LEN + BTH_LEN + METH_LEN + RETH_LEN + payload + ICRC_LEN
    planes = remote_paths(fabric, source, target).planes
    tclass = traffic_class(0, ecn_capable=False)
    by_plane = [
        [
            (plane.port, prefix(plane, path, options, tclass, length)[0] + bytes(length - UDP_LEN))
            for path in plane.paths
        ]
        for plane in planes
    ]
    return [frame for together in zip(*by_plane, strict=True) for frame in together]


def send(fabric: Fabric, seconds: float) -> dict[str, float]:
    """Send frames as fast as possible for ``seconds``."""
    ports = {p.plane: TransmitPort(p.plane, p.ifname) for p in fabric.host(FROM).ports}
    frames = [(ports[plane], frame) for plane, frame in frames_of(fabric, FROM, TO, PAYLOAD)]
    end = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < end:
        for port, frame in frames:
            while not port.send(frame):
                select.select([], [port.fileno()], [])
            sent += 1
    return {"sent": sent}


def receive(fabric: Fabric) -> dict[str, float]:
    """Count frames until no frame has arrived for QUIET_S."""
    receiver = Receiver({a.mac: a.port for a in nic_addresses(fabric, TO)})
    print("ready", flush=True)
    first = last = 0.0
    count = 0
    while select.select([receiver.fileno()], [], [], QUIET_S if count else 10)[0]:
        for _ in receiver.received(64):
            count += 1
        last = time.monotonic()
        first = first or last
    return {"received": count, "seconds": last - first, "drops": receiver.drops()}


def bounce(fabric: Fabric, source: str, target: str, rounds: int) -> dict[str, list[int]]:
    """Send frames back and forth: h1 answers each frame over the same plane, h0 measures the times."""
    receiver = Receiver({a.mac: a.port for a in nic_addresses(fabric, source)})
    ports = {p.plane: TransmitPort(p.plane, p.ifname) for p in fabric.host(source).ports}
    frames = frames_of(fabric, source, target, SMALL)
    back = dict(frames)
    durations = []
    print("ready", flush=True)
    if source == TO:
        while select.select([receiver.fileno()], [], [], 5)[0]:
            for plane, _ in receiver.received(1):
                ports[plane].send(back[plane])
        return {}
    for number in range(rounds):
        plane, frame = frames[number % len(frames)]
        started = time.monotonic_ns()
        ports[plane].send(frame)
        if not select.select([receiver.fileno()], [], [], 1)[0]:
            raise RuntimeError("a frame was lost")
        for _ in receiver.received(1):
            durations.append(time.monotonic_ns() - started)
    return {"durations": durations}


def start(network: FabricNetwork, host: str, cpu: int, *words: str) -> subprocess.Popen[str]:
    """Start this file in a host's namespace, in the role that ``words`` name."""
    command = [sys.executable, str(Path(__file__).resolve()), "--role", *words, "--cpu", str(cpu)]
    command += ["--prefix", network.names.prefix]
    process: subprocess.Popen[str] = network.spawn(host, command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return process


def _ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("a process of the raw loop did not start")


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    text, _ = process.communicate(timeout=120)
    answer: dict[str, float] = json.loads(text.splitlines()[-1])
    return answer


def cpus() -> tuple[int, int]:
    """Return a CPU for each of two processes."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 % len(allowed)]


def throughput(network: FabricNetwork, seconds: float) -> Raw:
    """Measure one round of frames/s."""
    here, there = cpus()
    receiver = start(network, TO, there, "receive")
    _ready(receiver)
    sender = start(network, FROM, here, "send", "--seconds", str(seconds))
    sent, got = _answer(sender), _answer(receiver)
    return Raw(got["received"] / got["seconds"], int(sent["sent"]), int(got["received"]))


def round_trips(network: FabricNetwork, rounds: int) -> list[float]:
    """Return the times of round trips in us, without the first tenth of them."""
    here, there = cpus()
    far = start(network, TO, there, "far", "--rounds", str(rounds))
    _ready(far)
    near = start(network, FROM, here, "near", "--rounds", str(rounds))
    _ready(near)
    answer = _answer(near)
    far.kill()
    far.communicate()
    durations: list[int] = answer["durations"]  # type: ignore[assignment]
    return [ns / 1e3 for ns in durations[rounds // 10 :]]


def _role(options: argparse.Namespace) -> None:
    take_cpu(options.cpu)
    sharpen_timers()
    fabric = FabricNetwork.attached(Names.of_prefix(options.prefix)).fabric
    if options.role == "send":
        answer: object = send(fabric, options.seconds)
    elif options.role == "receive":
        answer = receive(fabric)
    elif options.role == "near":
        answer = bounce(fabric, FROM, TO, options.rounds)
    else:
        answer = bounce(fabric, TO, FROM, options.rounds)
    print(json.dumps(answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="of sending, per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uplinks", type=int, default=16, help="paths per plane; 4 planes")
    parser.add_argument("--target", default="ebpf")
    for hidden in ("--role", "--prefix"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        _role(options)
        return
    print(f"raw loop over {4 * options.uplinks} paths, {machine()}")
    with running_fabric(options.uplinks, options.target) as network:
        rounds = [throughput(network, options.seconds) for _ in range(options.rounds)]
        trips = round_trips(network, 5000)
    head()
    lost = sum(r.sent - r.received for r in rounds) / sum(r.sent for r in rounds)
    row(
        "frames of 4,096 B payload",
        len(rounds),
        [r.frames_per_s for r in rounds],
        "frames/s",
        f"{lost:.1%} lost",
    )
    row("round trip", len(trips), trips, "us", f"p99 {sorted(trips)[len(trips) * 99 // 100]:.1f}")


if __name__ == "__main__":
    main()
