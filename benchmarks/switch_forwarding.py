"""The cost of the ebpf target: time to compile, to load switches and to forward a packet, and memory.

    python benchmarks/switch_forwarding.py [--switches 32] [--ports 4] [--json FILE --p4info FILE]

Needs root. Runs in separate network namespaces and leaves nothing. Methods:

* compile: BMv2 JSON to BPF object code, including the worker process; median of 5;
* load: create the maps of one switch and load its program, without attaching it; median of 20;
* packet: BPF_PROG_TEST_RUN of a frame of 154 bytes, minimum and median over 400 calls. A call has 5 runs, and
  each run takes a uSID off. Cases: not MRC, dropped, MRC without and with a queue, marked. A frame of 3,138
  bytes is trimmed.
* fabric: a server process with N switches, from its start to the last SetForwardingPipelineConfig. Memory is
  the resident set of the process and the memory of its maps and programs (memlock in fdinfo).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from switch_kit import (  # noqa: E402
    JSON,
    P4INFO,
    Client,
    Namespace,
    forwarded,
    ip,
    ipv6_frame,
    mrc_frame,
    read_p4info,
    sid,
)

from mrclab.linux import bpf  # noqa: E402
from mrclab.linux.traffic_control import ifindex_of  # noqa: E402
from mrclab.switches.ebpf.codegen.compile import compile_json  # noqa: E402
from mrclab.switches.ebpf.plan import TableLayout  # noqa: E402
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps  # noqa: E402
from mrclab.switches.ebpf.target import EbpfTarget  # noqa: E402
from mrclab.switches.spec import SwitchSpec  # noqa: E402


def report(what: str, value: float, unit: str, note: str = "") -> None:
    print(f"{what:34} {value:10.1f} {unit:6} {note}")


# Each queue: time per byte, limit, depth for trimming, depth for marking. With SLOW, 1 us per byte, every
# frame after the first must wait, but all frames of a row together stay below the limit of 4 s.
FAR, SLOW = 2**32 - 1, 1024 << 16
QUEUES = {
    "packet of MRC, queued": (0, FAR, FAR, FAR),
    "packet of MRC, queued and marked": (SLOW, FAR, FAR, 0),
    "packet of MRC, trimmed": (SLOW, FAR, 0, 0),
}


def set_queue(
    path: Datapath, tables: Mapping[str, TableLayout], byte_time: int, limit: int, trim: int, mark: int
) -> None:
    """Write the entries for the queue of port 2, as a controller would."""

    def put(table: str, key: bytes, action: str, *args: int) -> None:
        layout = tables[f"MrcIngress.{table}"]
        number = next(a.number for a in layout.actions if a.name.endswith(f".{action}"))
        value = struct.pack(f"=II{len(args)}Q", number, 0, *args)
        assert layout.map is not None
        path.maps[layout.map].update(key, value.ljust(layout.value_size, b"\0"))

    put("port_queue.traffic_class", bytes([4]), "trimmable")
    put("port_queue.port_queue", (2).to_bytes(2, "big"), "send_at", byte_time, limit, trim, FAR, 12)
    put("ecn_mark.marking", (2).to_bytes(2, "big"), "red", mark, 1)


def one_switch(data: bytes) -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        compiled = compile_json(data)
        times.append(time.perf_counter() - start)
    report("compile", statistics.median(times) * 1e3, "ms", f"{len(compiled.code) // 8} instructions")
    ns = Namespace()
    try:
        for i in (1, 2):
            ns.pair(f"s{i}", f"h{i}")
        shared = SharedMaps()

        def load() -> Datapath:
            return Datapath("bench", compiled, {1: "s1", 2: "s2"}, shared)

        times = []
        for _ in range(20):
            start = time.perf_counter()
            path = ns.run(load)
            times.append(time.perf_counter() - start)
            if len(times) < 20:
                path.close_descriptors()
        report("load", statistics.median(times) * 1e3, "ms")
        tables = compiled.plan.tables
        my_sid, hop = (tables[f"MrcIngress.micro_segment.{n}"] for n in ("my_sid", "next_hop"))
        key = struct.pack("=I", 48)
        assert my_sid.map is not None
        assert hop.map is not None
        path.maps[my_sid.map].update(key + sid(1).to_bytes(16, "big"), struct.pack("=II", 1, 0))
        path.maps[hop.map].update(key + sid(1).to_bytes(16, "big"), struct.pack("=IIQQQ", 1, 0, 2, 1, 2))
        index = ns.run(lambda: ifindex_of("s1"))
        # The list has the same uSID six times, so that every run matches my_sid and next_hop.
        for what, frame, repeat in (
            ("packet forwarded", ipv6_frame(sid(*[1] * 6), 154, 255), 5),
            ("packet dropped (no such SID)", ipv6_frame(sid(9), 154, 255), 50),
            ("packet of MRC, no queue set", mrc_frame(sid(*[1] * 6), 16, dscp=4, ecn=2, hop_limit=255), 5),
            ("packet of MRC, queued", mrc_frame(sid(*[1] * 6), 16, dscp=4, ecn=2, hop_limit=255), 5),
            (
                "packet of MRC, queued and marked",
                mrc_frame(sid(*[1] * 6), 16, dscp=4, ecn=2, hop_limit=255),
                5,
            ),
            ("packet of MRC, trimmed", mrc_frame(sid(*[1] * 6), 3000, dscp=4, ecn=2, hop_limit=255), 1),
        ):
            if what in QUEUES:
                set_queue(path, tables, *QUEUES[what])
            ns.run(lambda f=frame, r=repeat: bpf.run_once(path.fd, f, index, r))
            runs = ns.run(
                lambda f=frame, r=repeat: [bpf.run_once(path.fd, f, index, r)[2] for _ in range(400)]
            )
            report(what, min(runs), "ns", f"median {statistics.median(runs):.0f}, {repeat} runs a call")
        path.close_descriptors()
        shared.close()
    finally:
        ns.delete()


def charged(pid: int) -> int:
    """Return the bytes of memory that the kernel charges for a process's maps and programs."""
    total = 0
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        found = re.search(r"^memlock:\s*(\d+)", entry.read_text(), re.MULTILINE)
        total += int(found[1]) if found else 0
    return total


def fabric(data: bytes, switches: int, ports: int) -> None:
    info = read_p4info(P4INFO)
    ns = Namespace()
    try:
        specs = []
        links = []
        for s in range(switches):
            for p in range(1, ports + 1):
                near, far = f"s{s}p{p}", f"h{s}p{p}"
                links.append(f"link add {near} type veth peer name {far}")
                links += [f"link set {near} up", f"link set {far} up"]
            specs.append(SwitchSpec(f"s{s}", s + 1, {p: f"s{s}p{p}" for p in range(1, ports + 1)}))
        with tempfile.TemporaryDirectory() as directory:
            batch = Path(directory) / "links"
            batch.write_text("\n".join(links))
            ip("-n", ns.name, "-batch", str(batch))
            target = EbpfTarget()
            start = time.perf_counter()
            running = target.start(specs, netns=ns.name, log_dir=Path(directory))
            report(
                "fabric: start",
                (time.perf_counter() - start) * 1e3,
                "ms",
                f"{switches} switches, {ports} ports each",
            )
            try:
                with forwarded(ns, running[0].grpc_address) as address:
                    clients = [Client(address, s.device_id) for s in specs]
                    for c in clients:
                        c.become_primary()
                    start = time.perf_counter()
                    for c in clients:
                        c.set_pipeline(data, info)
                    spent = time.perf_counter() - start
                    report(
                        "fabric: set all pipelines",
                        spent * 1e3,
                        "ms",
                        f"{spent / switches * 1e3:.1f} ms each",
                    )
                    (pid,) = target.pids()
                    status = Path(f"/proc/{pid}/status").read_text()
                    report("fabric: server resident", int(status.split("VmRSS:")[1].split()[0]) / 1024, "MiB")
                    report("fabric: maps and programs", charged(pid) / 2**20, "MiB")
                    for c in clients:
                        c.close()
            finally:
                start = time.perf_counter()
                target.stop()
                report("fabric: stop", (time.perf_counter() - start) * 1e3, "ms")
    finally:
        ns.delete()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--switches", type=int, default=32)
    parser.add_argument("--ports", type=int, default=4)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("switch_forwarding: needs root", file=sys.stderr)
        return 3
    print(f"kernel {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    data = JSON.read_bytes()
    one_switch(data)
    fabric(data, options.switches, options.ports)
    return 0


if __name__ == "__main__":
    sys.exit(main())
