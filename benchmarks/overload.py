"""A switch's port under more load than its link can carry: marks, trims, and the delay of control frames.

    python benchmarks/overload.py [--rates 20,100,1000] [--overloads 2,4,10] [--seconds 2] [--json]

Needs root. One ebpf switch in a separate namespace forwards from two ports to one port. It has the entries of
the controller and the qdiscs of the testbed (`tests/support/merge.py`). MRC frames have 4096 bytes of
payload. For each rate:

* marks: each frame is sent at a time when the queue has a random depth between the two thresholds. The share
  of marked frames must agree with RED's share for these depths within 10 %.
* overload: two senders, each a process on a separate CPU, offer N times the link's rate in trimmable frames.
  Every frame must leave the switch, whole or trimmed: the pipeline and the kernel's queues must drop nothing.
* control: control frames are sent to one port at random times, with and without overload from the other port.
  Their delay is measured between the kernel's timestamps at the switch's port and behind the link, so the
  sending and receiving processes do not count. The 99th percentile under load must be at most twice the 99th
  percentile without load, plus the time of one data frame.

Ends with exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.paced_sender import PacedSender  # noqa: E402
from mrclab.linux.bpf import attach_filter  # noqa: E402
from mrclab.p4src.contract import CONTROL_DSCP, FRAME_OVERHEAD_BYTES, TRIMMABLE_DSCP, Drop  # noqa: E402
from mrclab.topologies import LinkProfile  # noqa: E402
from tests.support.merge import Merge, marks_between  # noqa: E402
from tests.support.switch_kit import JSON, P4INFO, Namespace, mrc_frame, read_p4info, sid  # noqa: E402

MTU, PAYLOAD = 4300, 4096
WHOLE = PAYLOAD + FRAME_OVERHEAD_BYTES
MARK_TOLERANCE = 0.1
_SO_TIMESTAMPNS = 35
_PACKET_OUTGOING = 4


def kernel_drops(merge: Merge) -> int:
    said = subprocess.run(
        ["tc", "-n", merge.ns.name, "-s", "qdisc", "show", "dev", "s3"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sum(int(n) for n in re.findall(r"dropped (\d+)", said))


def overload(merge: Merge, rate_bps: int, times: float, seconds: float) -> dict[str, Any]:
    names = {
        "trimmed": ("trim.trimmed", 3),
        "queue_full": ("drops", Drop.QUEUE_FULL),
        "trim_limit": ("drops", Drop.TRIM_LIMIT),
    }
    before = {name: merge.count(*where) for name, where in names.items()}
    senders = [PacedSender(merge.h[i], data_frame(), pace(rate_bps, times / 2), i - 1) for i in (1, 2)]
    started = time.monotonic()
    time.sleep(seconds)
    sent = sum(s.stop() for s in senders)
    lasted = time.monotonic() - started
    counted = {name: merge.count(*where) - before[name] for name, where in names.items()}
    return {"offered": sent * WHOLE * 8 / lasted / rate_bps, "sent": sent, **counted}


def data_frame() -> bytes:
    return mrc_frame(sid(1, 3), PAYLOAD, dscp=TRIMMABLE_DSCP, ecn=2)


def pace(rate_bps: int, times: float) -> float:
    return WHOLE * 8e9 / (rate_bps * times)


def stamped_socket(merge: Merge, ifname: str) -> socket.socket:
    """Open a socket for an interface's control frames, with the kernel's timestamps."""
    opened = merge.ns.packet_socket(ifname)
    opened.settimeout(0)
    # Classic BPF: pass the whole frame if its DSCP (6 of the 16 bits behind the Ethernet header) is control.
    program = (
        (0x28, 0, 0, 14),
        (0x54, 0, 0, 0x0FC0),
        (0x15, 0, 1, CONTROL_DSCP << 6),
        (6, 0, 0, 1 << 16),
        (6, 0, 0, 0),
    )
    attach_filter(opened, program)
    while True:  # drop frames that came before the filter
        try:
            opened.recv(1)
        except BlockingIOError:
            break
    opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    merge.stack.callback(opened.close)
    return opened


def stamps(listener: socket.socket) -> dict[int, int]:
    """Return the arrival time of each control frame in ns, by the number in the frame."""
    found = {}
    while True:
        try:
            data, ancillary, _, address = listener.recvmsg(200, 128)
        except BlockingIOError:
            return found
        if address[2] == _PACKET_OUTGOING or len(data) < FRAME_OVERHEAD_BYTES:
            continue  # a trimmed frame from before the filter
        for _level, kind, value in ancillary:
            if kind == _SO_TIMESTAMPNS:
                s, ns = struct.unpack("=qq", value)
                found[struct.unpack_from("!I", data, FRAME_OVERHEAD_BYTES - 4)[0]] = s * 10**9 + ns


def control_delays_us(merge: Merge, samples: int, draw: random.Random) -> list[float]:
    """Return the sorted times of control frames from port 2 to the far end of the link."""
    start, end = stamped_socket(merge, "s2"), stamped_socket(merge, "h3")
    begun, ended = {}, {}
    frame = bytearray(mrc_frame(sid(1, 3), 64, dscp=CONTROL_DSCP))
    for number in range(samples):
        struct.pack_into("!I", frame, FRAME_OVERHEAD_BYTES - 4, number)
        merge.h[2].send(frame)
        time.sleep(draw.uniform(0.5e-3, 2e-3))
        begun.update(stamps(start))
        ended.update(stamps(end))
    time.sleep(0.05)
    ended.update(stamps(end))
    start.close()
    end.close()
    assert len(ended) == samples, f"{samples - len(ended)} control frames were lost"
    return sorted((ended[n] - begun[n]) / 1e3 for n in begun)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def measure(
    rate_bps: int, overloads: list[float], seconds: float, samples: int, draw: random.Random
) -> dict[str, Any]:
    ns = Namespace()
    try:
        with tempfile.TemporaryDirectory() as directory:
            info, data = read_p4info(P4INFO), JSON.read_bytes()
            with Merge(ns, Path(directory), info, data, LinkProfile(rate_bps, 0, MTU)) as merge:
                merge.h[3].close()
                found: dict[str, Any] = {"rate_bps": rate_bps}
                marks = marks_between(merge, 2 * samples, draw)
                found["marks"] = marks
                found["marks_met"] = abs(marks["marked"] / marks["expected"] - 1) <= MARK_TOLERANCE
                dropped = kernel_drops(merge)
                found["overloads"] = {t: overload(merge, rate_bps, t, seconds) for t in overloads}
                found["kernel_drops"] = kernel_drops(merge) - dropped
                alone = control_delays_us(merge, samples, draw)
                allowed = 2 * p99(alone) + WHOLE * 8e6 / rate_bps
                found["control"] = {
                    "alone": {"p50": statistics.median(alone), "p99": p99(alone)},
                    "allowed": allowed,
                }
                for times in overloads:
                    sender = PacedSender(merge.h[1], data_frame(), pace(rate_bps, times), 0)
                    time.sleep(0.1)
                    under = control_delays_us(merge, samples, draw)
                    sender.stop()
                    found["control"][times] = {
                        "p50": statistics.median(under),
                        "p99": p99(under),
                        "max": under[-1],
                    }
                return found
    finally:
        ns.delete()


def misses(found: dict[str, Any]) -> list[str]:
    """Return the names of the missed bounds."""
    out = [] if found["marks_met"] else ["marks"]
    for times, row in found["overloads"].items():
        if row["queue_full"] or row["trim_limit"]:
            out.append(f"drops at {times:g}x")
        if found["control"][times]["p99"] > found["control"]["allowed"]:
            out.append(f"control at {times:g}x")
    return out + (["drops in the kernel"] if found["kernel_drops"] else [])


def show(found: dict[str, Any]) -> None:
    marks, control = found["marks"], found["control"]
    print(f"\n{found['rate_bps'] / 1e6:g} Mbit/s, one data frame {WHOLE * 8e6 / found['rate_bps']:.0f} us")
    print(f"  marks: {marks['marked']} of {marks['sent']} frames, {marks['expected']:.0f} expected", end="")
    print(f" ({marks['marked'] / marks['expected'] - 1:+.1%})")
    alone = control["alone"]
    print(
        f"  control alone: p50 {alone['p50']:.0f} us, p99 {alone['p99']:.0f} us; allowed under load:", end=""
    )
    print(f" p99 {control['allowed']:.0f} us")
    for times, row in found["overloads"].items():
        under = control[times]
        print(
            f"  {times:g}x: offered {row['offered']:.2f}, sent {row['sent']}, trimmed {row['trimmed']}",
            end="",
        )
        print(
            f" ({row['trimmed'] / row['sent']:.1%}), dropped {row['queue_full'] + row['trim_limit']}", end=""
        )
        print(f"; control p50 {under['p50']:.0f} us, p99 {under['p99']:.0f} us, max {under['max']:.0f} us")
    print(f"  dropped by the kernel's queues: {found['kernel_drops']}")
    print(f"  {', '.join(misses(found)) + ' MISSED' if misses(found) else 'met'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="20,100,1000", help="in Mbit/s")
    parser.add_argument("--overloads", default="2,4,10", help="times the link's rate")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("overload: needs root", file=sys.stderr)
        return 3
    overloads = [float(t) for t in options.overloads.split(",")]
    draw = random.Random(options.seed)
    if not options.json:
        print(f"kernel {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    results = []
    for rate in options.rates.split(","):
        results.append(measure(int(float(rate) * 1e6), overloads, options.seconds, options.samples, draw))
        if not options.json:
            show(results[-1])
    if options.json:
        print(json.dumps(results, indent=1))
    return 1 if any(map(misses, results)) else 0


if __name__ == "__main__":
    sys.exit(main())
