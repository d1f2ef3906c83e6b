"""Check that the rules of validity set aside the trials that a disturbance has changed, and no others.

    python benchmarks/validity.py [--trials 10] [--only NAME ...] [--json]

Needs root and the ebpf target. `link-kill` runs once undisturbed and once for each disturbance. In a
disturbed run, every second trial is disturbed, from the moment of its fault on. For each disturbance the
benchmark prints the recovery since the first loss, the number of wrong trials, and how many trials were set
aside.

* stop, freeze: SIGSTOP or the cgroup freezer stops one process for 5 or 50 ms: the sender, the receiver, the
  switches' process, or (only SIGSTOP) the process that reads the captures
* trace: a debugger attaches to the sender for 5 or 50 ms
* pause: sender, receiver and switches are stopped at the same time, as by a hypervisor
* hog: busy processes on one CPU, and on all, for the whole trial
* checkpoint: CRIU stops the sender or the receiver to save it, if it is installed
* quota: the sender in a cgroup that may use a tenth of a CPU
* memory: the sender loses the pages of its mapped files, as on a machine that is short of memory

A trial is wrong ("off") if its recovery differs by more than a quarter from the undisturbed median, and is
outside the range of the undisturbed trials. At least 95 % of the wrong trials, and at most 5 % of the
undisturbed trials, must be set aside. The exit code is 1 if this does not hold, and 3 if the machine lacks
something.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from mrclab.experiments.live import repetition as runs  # noqa: E402
from mrclab.experiments.live.disturbances import by_switch  # noqa: E402
from mrclab.experiments.live.drivers.spray import SprayDriver  # noqa: E402
from mrclab.experiments.live.fabrics import bring_up  # noqa: E402
from mrclab.experiments.measure.repetition import measure  # noqa: E402
from mrclab.experiments.measure.validity import kept_up  # noqa: E402
from mrclab.experiments.spec.scenario import load_scenario  # noqa: E402
from mrclab.faults.kinds import Fault, Moment  # noqa: E402
from mrclab.linux import scheduling  # noqa: E402
from mrclab.linux.errors import MachineError  # noqa: E402
from mrclab.linux.process_watch import FROZEN, STOPPED, state_of  # noqa: E402
from mrclab.testbed.names import Names  # noqa: E402
from mrclab.testbed.ownership import claimed  # noqa: E402

OFF = 0.25
SHORT_WAIT_NS = 1_000_000
"""The limit of each of the two waits before a fault, in ns. A disturbance of 5 ms lasts longer."""
MOST_SOUND, LEAST_OFF = 0.05, 0.95
CANNOT = 3
FREEZER, CPU = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/cpu")
UNIFIED = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
GROUP = f"mrclab-validity-{os.getpid()}"
_PROCESS_MADVISE, _PIDFD_OPEN, _MADV_PAGEOUT, _MOST_PIECES = 440, 434, 21, 1000
_TRACER = (
    "import ctypes, os, sys, time; p = int(sys.argv[1]); c = ctypes.CDLL(None).ptrace; "
    "c(16, p, None, None); os.waitpid(p, 0x40000000); time.sleep(float(sys.argv[2])); c(17, p, None, None)"
)
"""A script that attaches to a process (PTRACE_ATTACH, waitpid with __WALL), waits, and detaches."""
_LIBC = ctypes.CDLL(None, use_errno=True)

Disturbance = Callable[[], AbstractContextManager[None]]


@dataclass
class Pids:
    """The processes of the present run: ``sender``, ``receiver``, ``switches``, ``capture``."""

    of: dict[str, int] = field(default_factory=dict)


class Driver(SprayDriver):
    """The driver of the workload spray. It passes the pids of its processes to the disturbances."""

    pids_shown = Pids()

    def start(self) -> int:
        """Record the pids, then start as the base class does."""
        self.pids_shown.of.update(self.pids)
        return super().start()


class Disturbing:
    """Applies faults, and disturbs every second one. ``disturbed`` has the numbers of disturbed faults."""

    def __init__(self, faults: Any, disturbance: Disturbance) -> None:
        self._faults = faults
        self._disturbance = disturbance
        self._ending: contextlib.ExitStack | None = None
        self.made = 0
        self.disturbed: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._faults, name)

    def apply(self, fault: Fault) -> Moment:
        """Make a fault. If its number is odd, begin the disturbance just before it."""
        number, self.made = self.made, self.made + 1
        self._ending = contextlib.ExitStack()
        if number % 2:
            self.disturbed.add(number)
            self._ending.enter_context(self._disturbance())
        return self._faults.apply(fault)  # type: ignore[no-any-return]

    def undo(self, where: str) -> Moment:
        """End the disturbance, and undo the fault."""
        if self._ending is not None:
            self._ending.close()
        return self._faults.undo(where)  # type: ignore[no-any-return]


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """Disturb nothing."""
    yield


def shell(pids: Pids, name: str, begin: str, hold_s: float, end: str) -> Disturbance:
    """Return a disturbance by shell commands that begins before the fault. ``$P`` is the process."""

    @contextlib.contextmanager
    def disturb() -> Iterator[None]:
        pid = pids.of[name]
        script = f"P={pid}; {begin}; sleep {hold_s}; {end}"
        with subprocess.Popen(["chrt", "-r", "3", "sh", "-c", script]) as disturber:
            while pid != os.getpid() and disturber.poll() is None and state_of(pid) not in (*STOPPED, FROZEN):
                pass
            yield
            disturber.wait()

    return disturb


def stopping(pids: Pids, name: str, hold_s: float) -> Disturbance:
    """Return a disturbance that stops a process by a signal."""
    return shell(pids, name, "kill -STOP $P", hold_s, "kill -CONT $P")


def tracing(pids: Pids, name: str, hold_s: float) -> Disturbance:
    """Return a disturbance by a debugger that attaches to a process."""
    return shell(pids, name, f"exec {sys.executable} -c '{_TRACER}' $P {hold_s}", 0, "true")


def checkpointing(pids: Pids, name: str, directory: Path) -> Disturbance:
    """Return a disturbance by CRIU, which stops a process, saves it and continues it.

    CRIU cannot save packet sockets with filters. It stops the process, fails, and continues the process.
    """
    dump = f"criu dump --tree $P --images-dir {directory} --leave-running --shell-job --ext-unix-sk"
    return shell(pids, name, f"{dump} > /dev/null 2>&1", 0, "true")


def pausing(pids: Pids, hold_s: float) -> Disturbance:
    """Return a disturbance that stops sender, receiver and switches at the same time."""

    @contextlib.contextmanager
    def disturb() -> Iterator[None]:
        everyone = " ".join(str(pids.of[name]) for name in ("sender", "receiver", "switches"))
        commands = (f"kill -STOP {everyone}", f"kill -CONT {everyone}")
        with shell(pids, "sender", commands[0], hold_s, commands[1])():
            yield

    return disturb


def freezing(pids: Pids, name: str, hold_s: float) -> Disturbance:
    """Return a disturbance that freezes a process by the cgroup freezer, version 1 or 2."""
    if FREEZER.is_dir():
        parent, members, switch, on, off = FREEZER, "tasks", "freezer.state", "FROZEN", "THAWED"
    else:
        parent = next(p for p in UNIFIED if (p / "cgroup.procs").exists())
        members, switch, on, off = "cgroup.procs", "cgroup.freeze", "1", "0"
    group = parent / GROUP
    begin = f"mkdir -p {group}; echo $P > {group}/{members}; echo {on} > {group}/{switch}"
    return shell(pids, name, begin, hold_s, f"echo {off} > {group}/{switch}; echo $P > {parent}/{members}")


def hogging(count: int) -> Disturbance:
    """Return a disturbance by ``count`` busy processes. It lasts until the fault is undone."""

    @contextlib.contextmanager
    def disturb() -> Iterator[None]:
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            yield
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()

    return disturb


def quota(pids: Pids) -> Disturbance:
    """Return a disturbance that limits the sender to a tenth of a CPU, by cgroups of version 1."""
    group = CPU / GROUP

    @contextlib.contextmanager
    def disturb() -> Iterator[None]:
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text("1000")
        with contextlib.suppress(OSError):  # some kernels have no quotas for real-time processes
            (group / "cpu.rt_period_us").write_text("10000")
            (group / "cpu.rt_runtime_us").write_text("1000")
        (group / "tasks").write_text(str(pids.of["sender"]))
        try:
            yield
        finally:
            (CPU / "tasks").write_text(str(pids.of["sender"]))

    return disturb


def paging_out(pids: Pids) -> Disturbance:
    """Return a disturbance that removes the sender's mapped files from memory."""

    @contextlib.contextmanager
    def disturb() -> Iterator[None]:
        pid = pids.of["sender"]
        ranges = []
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            where, _, _, _, inode, *_ = line.split()
            if inode != "0":
                ranges.append([int(word, 16) for word in where.split("-")])
        pidfd = _LIBC.syscall(_PIDFD_OPEN, pid, 0)
        pieces = b"".join(struct.pack("=QQ", a, b - a) for a, b in ranges[:_MOST_PIECES])
        _LIBC.syscall(_PROCESS_MADVISE, pidfd, pieces, len(pieces) // 16, _MADV_PAGEOUT, 0)
        os.close(pidfd)
        yield

    return disturb


def disturbances(pids: Pids, scratch: Path) -> dict[str, Disturbance]:
    """Return all disturbances by name."""
    cpus = len(os.sched_getaffinity(0))
    found: dict[str, Disturbance] = {
        "none": nothing,
        "hog, one CPU": hogging(1),
        "hog, all CPUs": hogging(cpus),
    }
    for name in ("sender", "receiver", "switches", "capture"):
        for ms in (5, 50):
            found[f"stop {name} {ms} ms"] = stopping(pids, name, ms / 1000)
            if name != "capture":
                found[f"freeze {name} {ms} ms"] = freezing(pids, name, ms / 1000)
    for ms in (5, 50):
        found[f"trace sender {ms} ms"] = tracing(pids, "sender", ms / 1000)
        found[f"pause all {ms} ms"] = pausing(pids, ms / 1000)
    if shutil.which("criu"):
        for name in ("sender", "receiver"):
            found[f"checkpoint {name}"] = checkpointing(pids, name, scratch)
    if CPU.is_dir():
        found["quota, sender"] = quota(pids)
    found["memory, sender"] = paging_out(pids)
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial: recovery since the first loss in us, whether it was disturbed, whether it was set aside."""

    recovered_us: float | None
    disturbed: bool
    aside: bool


def run_one(runner: runs.RepetitionRunner, faults: Disturbing, number: int) -> list[Trial]:
    """Run a repetition; return its trials, without rehearsals."""
    evidence = runner.run(number)
    found = measure(evidence)
    counted = {int(trial["trial"]): (trial, False) for trial in found.trials}
    counted |= {int(trial["trial"]): (trial, True) for trial in found.trials_aside}
    # If too few trials are sound, a run counts all trials. Then judge each trial by its load here.
    refused = {n for n, load in zip(sorted(counted), found.validity.loads, strict=False) if not kept_up(load)}
    if found.trials_aside:
        refused = set()
    return [
        Trial(trial["recovered_since_loss_us"], number in faults.disturbed, aside or number in refused)
        for number, (trial, aside) in sorted(counted.items())
    ]


def summary(trials: list[Trial], usual_us: float, spread_us: tuple[float, float]) -> dict[str, Any]:
    """Return the times of trials, the numbers of wrong trials and of trials set aside, by name."""
    times = [t.recovered_us for t in trials if t.recovered_us is not None]

    def off(trial: Trial) -> bool:
        us = trial.recovered_us
        return us is None or (abs(us / usual_us - 1) > OFF and not spread_us[0] <= us <= spread_us[1])

    bad = [trial for trial in trials if off(trial)]
    return {
        "trials": len(trials),
        "p50_us": statistics.median(times) if times else None,
        "max_us": max(times, default=None),
        "off": len(bad),
        "off_aside": sum(trial.aside for trial in bad),
        "aside": sum(trial.aside for trial in trials),
    }


def main() -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=10, help="trials of each run, half of them disturbed")
    parser.add_argument("--only", nargs="*", help="the disturbances to try, by name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pids = Driver.pids_shown
    scenario = load_scenario("link-kill", target="ebpf", trials=options.trials)
    runs.DRIVERS["spray"] = Driver
    scheduling.MOST_WAIT_NS = SHORT_WAIT_NS
    transport = scenario.transports[0]
    trials: dict[str, list[Trial]] = {}
    try:
        with tempfile.TemporaryDirectory() as place, claimed(Names.from_environment()):
            out = Path(place)
            wanted = {
                name: disturbance
                for name, disturbance in disturbances(pids, out).items()
                if name == "none" or not options.only or name in options.only
            }
            with bring_up(scenario.fabric(), "ebpf", transport, out) as running:
                pids.of |= {"switches": min(by_switch(running).values()), "capture": os.getpid()}
                made = running.faults
                runner = runs.RepetitionRunner(
                    running, scenario, transport, out, lambda _: None, lambda: None
                )
                for number, (name, disturbance) in enumerate(wanted.items()):
                    faults = Disturbing(made, disturbance)
                    vars(running)["faults"] = faults
                    trials[name] = run_one(runner, faults, number)
                    print(name, file=sys.stderr)
    except MachineError as error:
        print(error, file=sys.stderr)
        return CANNOT
    finally:
        for parent in (FREEZER, CPU, *UNIFIED):
            with contextlib.suppress(OSError):
                (parent / GROUP).rmdir()
    return report(trials, as_json=options.json)


def report(trials: dict[str, list[Trial]], *, as_json: bool) -> int:
    """Print the table; return 1 if the criterion is missed, else 0."""
    sound = [t for found in trials.values() for t in found if not t.disturbed] + trials["none"]
    usual = [t.recovered_us for t in sound if t.recovered_us is not None and not t.aside]
    cuts = statistics.quantiles(usual, n=20)
    middle, spread = statistics.median(usual), (cuts[0], cuts[-1])
    rows = {"undisturbed": summary(sound, middle, spread)}
    for name, found in trials.items():
        if name != "none":
            rows[name] = summary([t for t in found if t.disturbed], middle, spread)
    off, caught = (sum(r[key] for n, r in rows.items() if n != "undisturbed") for key in ("off", "off_aside"))
    false = rows["undisturbed"]["aside"] / max(1, rows["undisturbed"]["trials"])
    holds = false <= MOST_SOUND and caught >= LEAST_OFF * off
    if as_json:
        print(json.dumps({"rows": rows, "spread_us": spread, "holds": holds}, indent=2))
        return 0 if holds else 1
    print(f"undisturbed: {middle:.0f} us in the median, 90 % from {spread[0]:.0f} to {spread[1]:.0f}")
    print(f"{'':24}{'trials':>8}{'p50 us':>10}{'max us':>10}{'off':>6}{'off, aside':>12}{'aside':>8}")
    for name, row in rows.items():
        p50, most = (f"{row[key]:,.0f}" if row[key] is not None else "-" for key in ("p50_us", "max_us"))
        counts = f"{row['off']:>6}{row['off_aside']:>12}{row['aside']:>8}"
        print(f"{name:24}{row['trials']:>8}{p50:>10}{most:>10}{counts}")
    print(f"of {off} disturbed trials that are off {caught} were set aside, of undisturbed ones {false:.1%}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
