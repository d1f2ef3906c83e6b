"""Forged frames on a fabric: their effect on agents, switches and a running stream.

    python benchmarks/forged_frames.py [--frames 200000] [--target ebpf] [--only CLASS...] [--json]

Needs root; brings `tiny` up under another prefix. h0 streams to h3. Another host of the same rack sends
forged frames, made from captured frames with the right addresses, queue pair, PSN and key. MRC has no
authentication, so forged frames can end a queue pair. They must not do more. Checks for each class of frames:

* all agents answer afterwards, and no agent has grown by more than 16 MiB;
* the stream continues, or its queue pair ends with an error, but the stream never waits for ever;
* a stream over new queue pairs between the same hosts delivers 50 messages without a wrong byte.

Ends with exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.forgeries import CLASSES, forged  # noqa: E402
from mrclab.hosts.nic.ports import ETH_P_IPV6  # noqa: E402
from mrclab.hosts.streams.stream import StreamPlan  # noqa: E402
from mrclab.hosts.worker import RemoteAgent  # noqa: E402
from mrclab.linux import namespaces  # noqa: E402
from mrclab.testbed.network import FabricNetwork  # noqa: E402
from tests.support.agents import Incast, incast  # noqa: E402
from tests.support.command import Up, up  # noqa: E402

SENDER, RECEIVER = "h0", "h3"
FORGERS = {True: "h1", False: "h2"}
"""The hosts that send forged frames: True for data of the sender, False for answers of the receiver."""
PLAN = StreamPlan(8192, 20_000_000, 1)
SEEN = 200
MADE = 2000
"""The number of different forged frames, which are sent again and again."""
AFTERWARDS = 50
GROWTH_BYTES = 16 << 20
PATIENCE_S = 60.0
CONFIG = {"transport_ack": True, "timestamps": True}


@contextmanager
def packet_socket(testbed: Up, host: str, ethertype: int) -> Iterator[socket.socket]:
    """Open a packet socket on a host's port of plane 0."""
    with namespaces.inside(testbed.host_namespace(host)):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
    with opened:
        opened.bind((testbed.fabric.host(host).ports[0].ifname, ethertype))
        yield opened


def seen(testbed: Up, host: str) -> list[bytes]:
    """Return frames that a host sends into plane 0."""
    mac = testbed.fabric.host(host).ports[0].mac
    found: list[bytes] = []
    with packet_socket(testbed, host, 3) as listener:  # ETH_P_ALL: outgoing frames too
        while len(found) < SEEN:
            if not select.select([listener], [], [], PATIENCE_S)[0]:
                raise RuntimeError(f"{host} sent {len(found)} frames within {PATIENCE_S:g} s")
            frame = listener.recv(1 << 16)
            if frame[6:12] == mac and frame[12:14] == ETH_P_IPV6.to_bytes(2, "big"):
                found.append(frame)
    return found


def send_all(testbed: Up, host: str, frames: Sequence[bytes], count: int) -> float:
    """Send ``count`` frames from a host into plane 0. Return the time that this took, in s."""
    port = testbed.fabric.host(host).ports[0]
    started = time.monotonic()
    own = [port.t0_mac + port.mac + frame[12:] for frame in frames]
    with packet_socket(testbed, host, 0) as sender:
        for number in range(count):
            sender.send(own[number % len(own)])
    return time.monotonic() - started


def status_of(agents: Incast) -> tuple[dict[str, Any], dict[str, Any]]:
    return agents.senders[SENDER].call("status"), agents.sink.call("status")


def goes_on_or_failed(agent: RemoteAgent) -> str:
    """Return "goes on" after 20 more messages, "ended" after an error, or "stuck" after PATIENCE_S."""
    completed = agent.call("status")["completed"]
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        status = agent.call("status")
        if status["failed"]:
            return "ended"
        if status["completed"] >= completed + 20:
            return "goes on"
    return "stuck"


def delivers(network: FabricNetwork) -> bool:
    """Return whether new queue pairs between the same hosts deliver messages without a wrong byte."""
    with incast(network, (SENDER,), RECEIVER, CONFIG, PLAN) as agents:
        agents.senders[SENDER].call("start")
        end = time.monotonic() + PATIENCE_S
        while agents.senders[SENDER].call("status")["completed"] < AFTERWARDS:
            if time.monotonic() > end:
                return False
        (status,) = agents.stop(PATIENCE_S)
        verified = agents.sink.call("verify")["problems"]
        return status["problem"] is None and verified == [None]


def measure(testbed: Up, name: str, frames: int, rng: random.Random) -> dict[str, Any]:
    """Send frames of a class into a stream. Return the row of the table."""
    network = FabricNetwork.attached(testbed.mrclab.names)
    of_data = CLASSES[name].of_data
    with incast(network, (SENDER,), RECEIVER, CONFIG, PLAN) as agents:
        agents.senders[SENDER].call("start")
        samples = seen(testbed, SENDER if of_data else RECEIVER)
        before = status_of(agents)
        seconds = send_all(testbed, FORGERS[of_data], forged(name, samples, MADE, rng), frames)
        after = status_of(agents)
        stream = goes_on_or_failed(agents.senders[SENDER])
        target = 1 if of_data else 0
        found = {
            "class": name,
            "frames": frames,
            "us_a_frame": seconds / frames * 1e6,
            "dropped": after[target]["frame_drops"] - before[target]["frame_drops"],
            "grown_bytes": max(a["rss_bytes"] - b["rss_bytes"] for a, b in zip(after, before, strict=True)),
            "stream": stream,
            "failed": agents.senders[SENDER].call("status")["failed"],
        }
    found["afterwards"] = delivers(network)
    found["met"] = found["afterwards"] and stream != "stuck" and found["grown_bytes"] <= GROWTH_BYTES
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Forged frames on a fabric.")
    parser.add_argument("--frames", type=int, default=200_000, help="of each class")
    parser.add_argument("--target", default="ebpf", choices=("ebpf", "bmv2"))
    parser.add_argument("--only", nargs="+", choices=list(CLASSES), default=list(CLASSES), metavar="CLASS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid():
        print("forged_frames: needs root", file=sys.stderr)
        return 3
    rng = random.Random(options.seed)
    rows = []
    with up("tiny", options.target) as testbed:
        for name in options.only:
            row = measure(testbed, name, options.frames, rng)
            rows.append(row)
            if not options.json:
                print(
                    f"{name:26} {row['us_a_frame']:6.1f} us each, {row['dropped']:7} dropped by the NIC, "
                    f"{row['grown_bytes'] / 2**20:+5.1f} MiB, stream {row['stream']}, "
                    f"new queue pairs {'deliver' if row['afterwards'] else 'DO NOT DELIVER'}"
                    f"{'' if row['met'] else '  MISSED'}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
