"""Compare a permutation in a user's `htsim_uec` and in mrclab, on the same non-blocking fabric of two tiers.

In both simulators, host i of n sends to host i + n / 2. All flows start at once, under NSCC, with trimming
and with marks from 0.2 to 0.8 of the bandwidth-delay product. Only the CPU time of the packets counts. The
time of a run with one packet a flow is subtracted from htsim's time. mrclab's time begins at the first event.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.kit.loads import MTU, fabric_of, frame_bytes
from benchmarks.virtual_time import World, settle_memory
from mrclab.linux.errors import InputError

_FINISHED = re.compile(r"finished at ([0-9.]+)")
HTSIM_OPTIONS = (
    "-sender_cc_only",
    "-sender_cc_algo",
    "nscc",
    "-load_balancing_algo",
    "mixed",
    "-paths",
    "64",
)
_MEASURE = """import os, sys
pid = os.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """CPU time of the packets (s), memory (MB), end of the slowest flow (us), and events per packet."""

    cpu_s: float
    memory_mb: float
    slowest_us: float
    events: float = math.nan


def radix_of(hosts: int) -> int:
    """Return the square root of ``hosts``: the number of hosts of a rack, of racks, and of T1s."""
    radix = math.isqrt(hosts)
    if radix * radix != hosts:
        raise InputError(f"--hosts {hosts}: not a square: choose 64, 256, 1024 or 4096")
    return radix


def packets_of(hosts: int, size: int) -> int:
    """Return the number of data packets of a permutation."""
    return hosts * -(-size // MTU)


def ours(hosts: int, gigabits: int, size: int, seed: int, options: dict[str, Any]) -> Run:
    """Run the permutation in mrclab's simulator, in this process."""
    radix = radix_of(hosts)
    world = World(fabric_of(1, radix, radix, hosts, gigabits), options, seed)
    world.post_permutation(size)
    settle_memory()
    began, clock = time.process_time(), world.network.clock
    before = clock.events
    slowest_us = world.run_until_done()
    cpu_s = time.process_time() - began
    status = Path("/proc/self/status").read_text()  # ru_maxrss would include the parent's peak
    memory_mb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    return Run(cpu_s, memory_mb, slowest_us, (clock.events - before) / packets_of(hosts, size))


def ours_alone(hosts: int, gigabits: int, size: int, seed: int, options: dict[str, Any]) -> Run:
    """Run `ours` in a separate process, so that its memory is measured alone."""
    asked = json.dumps([hosts, gigabits, size, seed, options])
    command = [sys.executable, "-m", "benchmarks.kit.htsim", asked]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return Run(**json.loads(done.stdout))


def theirs(binary: Path, folder: Path, hosts: int, gigabits: int, size: int, seed: int) -> Run:
    """Run the permutation in htsim. Raise InputError if htsim fails or does not end all flows."""
    whole = _htsim(binary, folder, hosts, gigabits, size, seed)
    empty = _htsim(binary, folder, hosts, gigabits, MTU, seed)
    return Run(whole.cpu_s - empty.cpu_s, whole.memory_mb, whole.slowest_us)


def _htsim(binary: Path, folder: Path, hosts: int, gigabits: int, size: int, seed: int) -> Run:
    topology, matrix = folder / "fabric.topo", folder / "permutation.cm"
    topology.write_text(_topology(hosts, gigabits))
    flows = (f"{n}->{(n + hosts // 2) % hosts} id {n + 1} start 0 size {size}\n" for n in range(hosts))
    matrix.write_text(f"Nodes {hosts}\nConnections {hosts}\n" + "".join(flows))
    command = [str(binary), "-topo", str(topology), "-tm", str(matrix), *HTSIM_OPTIONS]
    command += ["-mtu", str(frame_bytes()), "-linkspeed", str(gigabits * 1000), "-seed", str(seed)]
    command += ["-end", "100000", "-o", str(folder / "log")]
    # A small process starts htsim, because a process's peak memory includes the peak of its parent.
    with (folder / "out").open("w+") as out:
        small = [sys.executable, "-I", "-S", "-c", _MEASURE, *command]
        done = subprocess.run(small, stdout=out, stderr=subprocess.PIPE, cwd=folder, check=False, text=True)
        out.seek(0)
        text = out.read()
    code, cpu_s, kib = (float(word) for word in done.stderr.split()[-3:])
    ended = [float(word) for word in _FINISHED.findall(text)]
    if code or len(ended) != hosts:
        last = (text.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"{binary}: {len(ended)} of {hosts} flows ended, exit code {code:.0f}: {last}")
    return Run(cpu_s, kib / 1024, max(ended))


def _topology(hosts: int, gigabits: int) -> str:
    radix = radix_of(hosts)
    tiers = []
    for tier, delay_ns in ((0, 500), (1, 725)):
        up = [f"Radix_Up {radix}", "Oversubscribed 1"] if tier == 0 else []
        rows = [f"Tier {tier}", f"Downlink_speed_Gbps {gigabits}", f"Radix_Down {radix}", *up]
        tiers.append("\n".join([*rows, f"Downlink_Latency_ns {delay_ns}", "Switch_Latency_ns 0\n"]))
    return f"Nodes {hosts}\nTiers 2\nPodsize {hosts}\n\n" + "\n".join(tiers)


if __name__ == "__main__":
    print(json.dumps(asdict(ours(*json.loads(sys.argv[1])))))
