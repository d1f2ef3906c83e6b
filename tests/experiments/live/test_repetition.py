"""A repetition in which a switch ends is not valid, even if the switch ends late."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from mrclab.experiments.live.drivers.driver import Setting, Steady
from mrclab.experiments.live.repetition import DRIVERS, RepetitionRunner, StartError
from mrclab.experiments.measure.evidence import Collected, Evidence
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.measure.validity import Validity
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.hosts.worker import AgentError
from mrclab.linux.errors import SwitchError
from mrclab.p4src.targets import CAPABILITIES
from mrclab.testbed.lab import Lab

SCENARIO = """\
name: short
topology: tiny
transports: [mrc]
workload: {kind: stream}
warmup: 1 ms
"""
ENDED = "the switch server was killed"


class Server:
    """A fake of the target ebpf, in which one process runs all switches."""

    name = "ebpf"
    capabilities = CAPABILITIES["ebpf"]

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def processes(self) -> dict[str, int]:
        return {"all": self._process.pid}

    def ended(self) -> str | None:
        return None if self._process.poll() is None else ENDED

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Network:
    """A fake network without namespaces, whose own processes keep running."""

    names = SimpleNamespace(of=lambda fabric: ())

    def ended(self) -> str | None:
        return None


class NoFaults:
    """A fake registry of faults, without any fault."""

    def drop_prepared(self) -> None:
        pass


class Workload(Steady):
    """A fake driver. Its workload ends immediately, unless ``during`` has a function for the call `act`."""

    during: ClassVar[Mapping[str, Callable[[], None]]] = {}
    """The functions to run during a call of the driver, by the name of the call."""
    pids: ClassVar[Mapping[str, int]] = {}
    processes = 1
    next_ns: int | None = None
    restored: bool | None = True

    def __init__(self, setting: Setting) -> None:
        self.over = "act" not in self.during

    def _do(self, call: str) -> None:
        self.during.get(call, lambda: None)()

    def __enter__(self) -> Self:
        self._do("enter")
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def priority(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start(self) -> int:
        if not self.over:
            self.next_ns = time.monotonic_ns()
        return time.monotonic_ns()

    def descriptors(self) -> Collection[Any]:
        return ()

    def receive(self, ready: Sequence[object]) -> None:
        pass

    def act(self, clock: Callable[[], int]) -> None:
        self.next_ns = None
        self._do("act")

    def ask_restored(self, timeout_s: float) -> None:
        pass

    def stop(self) -> None:
        self._do("stop")

    def collect(self) -> Collected:
        self._do("collect")
        return Collected()


@pytest.fixture
def server() -> Iterator[Server]:
    with subprocess.Popen(["sleep", "infinity"]) as process:
        made = Server(process)
        yield made
        made.kill()


def validity(server: Server, out: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str | None) -> Validity:
    """Run a repetition in which the switch server is killed during the driver's call ``dies_in``."""
    return measure(ran(server, out, monkeypatch, {dies_in: server.kill} if dies_in else {})).validity


def ran(
    server: Server, out: Path, monkeypatch: pytest.MonkeyPatch, during: Mapping[str, Callable[[], None]]
) -> Evidence:
    """Run a repetition. ``during`` maps a call of the driver to a function that runs during the call."""
    scenario = parse_scenario(SCENARIO, "file.yaml")
    lab: Any = Lab.__new__(Lab)
    lab.network, lab.target, lab.fabric, lab.faults = Network(), server, scenario.fabric(), NoFaults()
    lab.controller = SimpleNamespace(verify=lambda: ())
    monkeypatch.setitem(DRIVERS, "stream", Workload)
    monkeypatch.setattr(Workload, "during", during)
    return RepetitionRunner(lab, scenario, scenario.transports[0], out, print, lambda: None).run(0)


def test_a_repetition_whose_switches_go_on_is_valid(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert validity(server, tmp_path, monkeypatch, None).reasons == ()


@pytest.mark.parametrize("call", ["act", "stop", "collect"])
def test_a_switch_server_that_is_killed_spoils_it_at_any_moment(
    call: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed in the measurement, after the faults, or while the hosts' results are fetched."""
    found = validity(server, tmp_path, monkeypatch, call)
    assert not found.valid
    assert any(ENDED in reason for reason in found.reasons)


@pytest.mark.parametrize(("killed", "told"), [(False, StartError), (True, SwitchError)])
def test_a_start_that_fails_is_worth_another_only_while_the_switches_go_on(
    killed: bool, told: type[Exception], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        if killed:
            server.kill()
        raise AgentError("the agent on h0: the accelerator is not ready after 50 s")

    with pytest.raises(told):
        ran(server, tmp_path, monkeypatch, {"enter": fail})
