"""The driver of the workload `program`, which runs programs of users.

Each program runs as with `mrclab exec`. The NIC services have the transport's options, write their event logs
into the repetition's directory, and record the programs' requests. The bytes of all completed writes are
compared with the captures. At the end the programs, the processes that they started, and the services are
ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mrclab.experiments.live.drivers.driver import Setting, Steady
from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.measure.load import Beats
from mrclab.experiments.measure.program_output import failure_of, found_in
from mrclab.experiments.run.link_bytes import bytes_sent
from mrclab.experiments.spec.program_workload import OneProgram, Program
from mrclab.hosts.worker import RemoteAgent
from mrclab.hosts.workloads.recorded import header, parse_recorded
from mrclab.linux import namespaces, processes
from mrclab.linux.scheduling import before_others, comes_first
from mrclab.native.build import libraries
from mrclab.p4src.targets import capabilities_of
from mrclab.testbed.programs import nic, view

MARK = "MRCLAB_PROGRAMS"
"""The environment variable that marks the repetition's programs and their child processes."""
BEGAN_BYTES = 1 << 16
"""If the switches have sent this number of bytes, the programs' traffic has begun."""
LOOK_S = 0.01
GRACE_S = 5.0
START_S = 120.0
LISTENS = "0A"
"""The state of a listening socket in ``net/tcp`` (proc(5))."""


@dataclass
class _Running:
    """A program that was started. It may have ended."""

    asked: OneProgram
    process: subprocess.Popen[bytes]
    pidfd: int
    output: Path
    code: int | None = None
    """The exit code, or minus the number of the signal that ended the program; None while it runs."""
    ended_by_us: bool = False

    @property
    def failure(self) -> str | None:
        """Return why the program failed; None if it did not fail."""
        if self.code is None or self.ended_by_us or self.code == self.asked.exit_code:
            return None
        return failure_of(self.asked.host, self.asked.run, self.code, self.output)


class ProgramDriver(Steady):
    """The driver of the programs of one repetition."""

    next_ns: int | None = None

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.scenario.workload, Program)
        self._setting = setting
        self._workload = setting.scenario.workload
        self._mark = f"{setting.running.network.run_id}.{os.urandom(4).hex()}"
        self._stack = contextlib.ExitStack()
        self._programs: list[_Running] = []
        self._services: dict[str, Path] = {}
        self._first = False
        self._late: str | None = None
        self.processes = len(self._workload.programs) + len(setting.placement.hosts)
        self.pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        setting, network = self._setting, self._setting.running.network
        try:
            libraries()
            view.provide_management(network.names, setting.running.fabric)
            for folder in ("events", "requests", "output"):
                (setting.directory / folder).mkdir(exist_ok=True)
            options = {**nic.OPTIONS, **setting.transport.channel_options}
            for host in setting.placement.hosts:
                log = (setting.directory / "events" / f"{host}.jsonl").resolve()
                path = nic.provide(network, host, options=options, log=log)
                self._services[host] = path
                self._stack.callback(nic.end, path)
                self._stack.enter_context(self._recorded(host, path))
                service = nic.process_of(path)
                if service is not None:
                    self.pids[f"the NIC of {host}"] = service.pid
        except BaseException:
            self._close()
            raise
        kernel = capabilities_of(setting.running.target_name).forwards_in_kernel
        self._first = kernel and all(comes_first(pid) for pid in self.pids.values())
        return self

    @contextlib.contextmanager
    def _recorded(self, host: str, path: Path) -> Iterator[None]:
        file = self._requests(host)
        with file.open("wb", buffering=0) as out:
            out.write(header(self._setting.running.fabric, host).encode())
            with nic.recorded(path, out.fileno()):
                yield

    def _requests(self, host: str) -> Path:
        return self._setting.directory / "requests" / f"{host}.jsonl"

    def __exit__(self, *error: Any) -> None:
        self._close()

    def _close(self) -> None:
        """End the programs, the processes that they started, and the NIC services."""
        with contextlib.ExitStack() as last:
            last.callback(self._stack.close)
            for program in self._programs:
                last.callback(os.close, program.pidfd)
            last.callback(self._end_programs)
            self._mark_running()
        self._programs = []

    def _mark_running(self) -> None:
        """Note which programs still run. The driver ends these programs: their exit codes do not count."""
        for program in self._programs:
            self._reap(program)
            program.ended_by_us = program.ended_by_us or program.code is None

    def _end_programs(self) -> None:
        processes.end(processes.find(MARK, lambda value: value == self._mark, ()), GRACE_S)
        for program in self._programs:
            if program.code is None:
                program.code = program.process.wait()

    def beats(self) -> Beats | None:
        """Return a report with one value: whether other programs can take a CPU from the NICs."""
        return Beats(0, first=self._first)

    def priority(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process, which makes the faults, has a higher priority.

        Programs that poll use whole CPUs. This process must not wait until a CPU is free.
        """
        return before_others()

    def start(self) -> int:
        """Start the programs in order; return the time (ns) at which the warm-up ends.

        The warm-up begins with the first traffic.
        """
        network = self._setting.running.network
        before = sum(bytes_sent(network).values())
        limit_ns = time.monotonic_ns() + round(START_S * 1e9)
        for asked in self._workload.programs:
            program = self._started(asked)
            if not self._wait(lambda asked=asked: self._listens(asked), limit_ns, (program,)):  # type: ignore[misc]
                why = f"{asked.host} {asked.run[0]} did not listen at port {asked.listens}"
                return self._not_begun(f"{why}: it ended before, or {START_S:.0f} s passed")
        if not self._wait(
            lambda: sum(bytes_sent(network).values()) - before >= BEGAN_BYTES, limit_ns, self._programs
        ):
            if all(program.code is not None for program in self._programs):
                return time.monotonic_ns()  # the programs sent almost nothing
            return self._not_begun(f"the programs sent nothing in {START_S:.0f} s")
        return time.monotonic_ns() + self._setting.scenario.live_warmup_ns

    def _not_begun(self, why: str) -> int:
        if not self._failures():
            self._late = why
        return time.monotonic_ns()

    def _started(self, asked: OneProgram) -> _Running:
        network = self._setting.running.network
        output = self._setting.directory / "output" / f"{len(self._programs)}-{asked.host}.txt"
        user = ["--user", asked.user] if asked.user else []
        with output.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "mrclab", "exec", *user, asked.host, "--", *asked.run],
                env={**network.environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        program = _Running(asked, process, os.pidfd_open(process.pid), output)
        self._programs.append(program)
        return program

    def _wait(self, done: Callable[[], bool], limit_ns: int, programs: Sequence[_Running]) -> bool:
        """Wait until ``done()``. Return False after ``limit_ns``, at a failure, or if all programs ended."""
        while not done():
            select.select([each.pidfd for each in programs if each.code is None], [], [], LOOK_S)
            for each in self._programs:
                self._reap(each)
            if self._failures() or all(each.code is not None for each in programs):
                return done()
            if time.monotonic_ns() >= limit_ns:
                return False
        return True

    def _listens(self, asked: OneProgram) -> bool:
        if not asked.listens:
            return True
        found: list[str] = []

        def read() -> None:
            namespaces.enter(self._setting.running.network.names.host(asked.host))
            for name in ("tcp", "tcp6"):
                with contextlib.suppress(OSError):
                    found.extend(Path(f"/proc/thread-self/net/{name}").read_text().splitlines()[1:])

        namespaces.in_thread(read)
        rows = [line.split() for line in found]
        return any(row[1].endswith(f":{asked.listens:04X}") and row[3] == LISTENS for row in rows)

    def _reap(self, program: _Running) -> None:
        if program.code is None:
            program.code = program.process.poll()

    def _failures(self) -> list[str]:
        return [why for program in self._programs if (why := program.failure) is not None]

    @property
    def over(self) -> bool:
        """Return True if all programs have ended, if one has failed, or if a time limit has passed.

        The time limits are for the start of the programs, for their first traffic and for their end.
        """
        ended = all(program.code is not None for program in self._programs)
        return ended or self._late is not None or bool(self._failures())

    def descriptors(self) -> Collection[RemoteAgent | int]:
        """Return the descriptors that become readable when a program ends."""
        return [program.pidfd for program in self._programs if program.code is None]

    def receive(self, ready: Sequence[object]) -> None:
        """Store the exit codes of programs that have ended."""
        for program in self._programs:
            if program.pidfd in ready:
                self._reap(program)

    def act(self, clock: Callable[[], int]) -> None:
        """Do nothing, because the driver plans no actions."""

    def ask_restored(self, timeout_s: float) -> None:
        """Do nothing, because programs do not report the paths that they use."""

    @property
    def restored(self) -> bool | None:
        """Return True, because programs do not report paths. So a trial does not wait for restored paths."""
        return True

    def stop(self) -> None:
        """End the programs that still run, and the services, so that logs and recordings are complete."""
        self._mark_running()
        if self._late is None and not self._failures():
            running = [program for program in self._programs if program.ended_by_us]
            if running:
                limit_s = self._setting.scenario.limit_ns / 1e9
                names = ", ".join(f"{each.asked.host} {each.asked.run[0]}" for each in running)
                self._late = f"{names} did not end within {limit_s:g} s (limit)"
        self._end_programs()
        self._stack.close()

    def collect(self) -> Collected:
        """Return the exit codes, the metrics, and the number of bytes of all completed writes."""
        failures = self._failures() or ([self._late] if self._late is not None else [])
        events = {host: self._setting.directory / "events" / f"{host}.jsonl" for host in self._services}
        requests = self._requested()
        return Collected(
            bytes_delivered=sum(row["bytes"] for row in requests),
            event_logs={host: path for host, path in events.items() if path.exists()},
            failure="; ".join(failures) or None,
            details={
                "programs": [self._account(program) for program in self._programs],
                "requests": requests,
            },
        )

    def _account(self, program: _Running) -> Mapping[str, Any]:
        asked = program.asked
        return {
            "host": asked.host,
            "run": list(asked.run),
            "exit_code": program.code,
            "ended_early": program.ended_by_us,
            "output": str(program.output.relative_to(self._setting.directory.parent)),
            "metrics": found_in(program.output, {n: m.pattern for n, m in asked.metrics.items()}),
        }

    def _requested(self) -> list[dict[str, Any]]:
        """Return the number and the bytes of completed writes for each pair of hosts."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for host in self._services:
            found = parse_recorded(self._requests(host).read_text(encoding="ascii"), host)
            for request in found.requests:
                row = rows.setdefault(
                    (host, request.peer),
                    {"src": host, "dst": request.peer, "completed": 0, "bytes": 0},
                )
                row["completed"] += 1
                row["bytes"] += request.size_bytes
        return list(rows.values())
