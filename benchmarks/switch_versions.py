"""The cost of a frame in several versions of the switch program, in one run.

    python benchmarks/switch_versions.py [REVISION ...]

Needs root and git. A revision's compiled program is read from git; the present program comes last. The
versions take turns, with 400 calls of BPF_PROG_TEST_RUN each. A call has five runs, or one run if the frame
is trimmed. Prints minimum and median in ns, and the minimum divided by the minimum of the first version.
Frames have 154 bytes, or 3,138 bytes if they are trimmed. A version without queues forwards these frames and
does not trim.
"""

from __future__ import annotations

import os
import platform
import statistics
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "benchmarks")]

from switch_forwarding import QUEUES, set_queue  # noqa: E402
from switch_kit import JSON, Namespace, ipv6_frame, ipv6_packet, list_frame, mrc_frame, sid, srh  # noqa: E402

from mrclab.linux import bpf  # noqa: E402
from mrclab.linux.traffic_control import ifindex_of  # noqa: E402
from mrclab.switches.ebpf.codegen.compile import compile_json  # noqa: E402
from mrclab.switches.ebpf.plan import TableLayout  # noqa: E402
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps  # noqa: E402

FIRST, QUEUED = (
    "b271480",
    "8c708f0",
)  # the first version for both targets, and the last version without lists, probes and ECMP
CALLS = 400
END = sid(9, 0xE0)


def put(path: Datapath, table: TableLayout, prefix: int, length: int, action: str, *args: int) -> None:
    number = next(a.number for a in table.actions if a.name.endswith(f".{action}"))
    value = struct.pack(f"=II{len(args)}Q", number, 0, *args).ljust(table.value_size, b"\0")
    assert table.map is not None
    path.maps[table.map].update(struct.pack("=I", length) + prefix.to_bytes(16, "big"), value)


def load(ns: Namespace, data: bytes) -> Datapath:
    compiled, shared = compile_json(data), SharedMaps()
    path = ns.run(lambda: Datapath("bench", compiled, {1: "s1", 2: "s2"}, shared))
    my_sid, hop = (compiled.plan.tables[f"MrcIngress.micro_segment.{n}"] for n in ("my_sid", "next_hop"))
    put(path, my_sid, sid(1), 48, "un")
    put(path, hop, sid(1), 48, "forward", 2, 1, 2)
    if any(a.name.endswith(".end") for a in my_sid.actions):
        put(path, my_sid, END, 128, "end", 0, 0)
        put(path, my_sid, END + 1, 128, "end", 1, 0)
    return path


def frames() -> list[tuple[str, bytes, int, bool]]:
    """Return for each case: its name, a frame, the runs of a call, and True if it needs segment lists."""
    six = sid(*[1] * 6)
    mrc = mrc_frame(six, 16, dscp=4, ecn=2, hop_limit=255)
    carried = ipv6_packet(7, bytes(40))
    out = [
        ("not MRC", ipv6_frame(six, 154, 255), 5, False),
        ("list of 3, End", list_frame(END, srh([sid(1), sid(1), END], 2, 41), carried), 1, True),
        ("list of 3, End with PSP", list_frame(END + 1, srh([sid(1), 1, 1], 1, 41), carried), 1, True),
        ("MRC, no queue set", mrc, 5, False),
    ]
    for name in QUEUES:
        cut = name.endswith("trimmed")
        out.append(
            (name, mrc_frame(six, 3000, dscp=4, ecn=2, hop_limit=255) if cut else mrc, 1 if cut else 5, False)
        )
    return out


def compiled_at(revision: str) -> bytes | None:
    """Return the compiled program of a revision, or None if this git clone does not have it."""
    command = ["git", "show", f"{revision}:p4src/build/mrc_switch.json"]
    try:
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:  # no git
        return None
    return shown.stdout if shown.returncode == 0 else None


def main() -> int:
    if os.geteuid() != 0:
        print("switch_versions: needs root", file=sys.stderr)
        return 3
    revisions = sys.argv[1:] or [FIRST, QUEUED]
    programs = {r: data for r in revisions if (data := compiled_at(r)) is not None}
    if absent := [r for r in revisions if r not in programs]:
        print(
            f"switch_versions: this clone has no program of {', '.join(absent)}: name others", file=sys.stderr
        )
        return 3
    print(f"kernel {platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    ns = Namespace()
    try:
        for i in (1, 2):
            ns.pair(f"s{i}", f"h{i}")
        paths = {}
        for revision in revisions:
            paths[revision] = load(ns, programs[revision])
        paths["now"] = load(ns, JSON.read_bytes())
        for name, path in paths.items():
            print(f"{name:10} {len(path.compiled.code) // 8} instructions")
        index = ns.run(lambda: ifindex_of("s1"))
        for what, frame, repeat, lists in frames():
            runs: dict[str, list[int]] = {name: [] for name in ([*paths] if not lists else ["now"])}
            for name in runs:
                tables = paths[name].compiled.plan.tables
                if what in QUEUES and "MrcIngress.port_queue.port_queue" in tables:
                    set_queue(paths[name], tables, *QUEUES[what])
            for _ in range(CALLS):
                for name, times in runs.items():
                    times.append(bpf.run_once(paths[name].fd, frame, index, repeat)[2])
            first = min(next(iter(runs.values())))
            said = [
                f"{name} {min(t)} ({statistics.median(t):.0f}) x{min(t) / first:.2f}"
                for name, t in runs.items()
            ]
            print(f"{what:34} " + "   ".join(said))
    finally:
        ns.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main())
