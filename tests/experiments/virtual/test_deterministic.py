"""A seed always gives the same bytes, with compiled or pure modules, also if packets are lost or trimmed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.pcap import read_pcap
from mrclab.experiments.virtual.ranks import HostProgram
from mrclab.hosts.compiled import in_use
from mrclab.hosts.roce.wire import Opcode
from tests.support.other_process import output_of
from tests.support.simulated_runs import RUNS, carry_out, digest


def cnps(found: Evidence) -> int:
    """Return the number of captured CNPs."""
    opcodes = [read_pcap(path).rows["opcode"] for path in found.captures.values()]
    return sum(int((opcode == Opcode.CNP).sum()) for opcode in opcodes)


def logged(found: Evidence, text: str) -> int:
    """Return how often a text occurs in the hosts' event logs."""
    (folder,) = {path.parent.parent for path in found.captures.values()}
    return sum(path.read_text(encoding="utf-8").count(text) for path in folder.glob("events/*.jsonl"))


SHOWN: dict[str, Callable[[Evidence], int]] = {
    "trimming": lambda found: found.counters["frames_trimmed"],
    "dcqcn": cnps,
    "pfc": lambda found: found.counters["pause_frames"],
    "credits": lambda found: found.counters["credit_updates"],
    "mrc-pfc": lambda found: found.counters["pause_frames"],
    "drain": lambda found: logged(found, '"reason":"denied"') * logged(found, "ev_restored"),
    "two-ranks": lambda found: len(found.samples) - len(found.captures),
}
"""For each run, a function that counts the events for which the run was made."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_what_it_is_there_for_and_repeats_itself(name: str, tmp_path: Path) -> None:
    first = carry_out(name, tmp_path / "first")
    assert (first.problem, first.failure) == (None, None)
    assert SHOWN[name](first) > 0
    seen = digest(tmp_path / "first", first)
    assert digest(tmp_path / "again", carry_out(name, tmp_path / "again")) == seen
    assert digest(tmp_path / "other", carry_out(name, tmp_path / "other", seed=2)) != seen


@pytest.mark.parametrize("name", ["trimming", "mrc-pfc", "two-ranks"])
def test_without_captures_packets_cross_as_objects_and_the_run_is_the_same(name: str, tmp_path: Path) -> None:
    seen = []
    for capture in (True, False):
        found = carry_out(name, tmp_path / str(capture), capture=capture)
        assert (found.problem, found.failure) == (None, None)
        assert bool(found.captures) == capture
        logs = [path.read_bytes() for _, path in sorted(found.event_logs.items())]
        samples = [{name: values.tolist() for name, values in sample.items()} for sample in found.samples]
        seen.append(
            (found.bytes_delivered, dict(found.counters), dict(found.links), found.end_ns, logs, samples)
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["trimming", "two-ranks"])
def test_ranks_may_be_asked_at_any_time_and_the_run_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for always in (False, True):
        if always:
            monkeypatch.setattr(HostProgram, "tick", lambda self, now_ns: self._go_on())
        found = carry_out(name, tmp_path / str(always))
        assert (found.problem, found.failure) == (None, None)
        samples = [{key: values.tolist() for key, values in sample.items()} for sample in found.samples]
        seen.append((digest(tmp_path / str(always), found), found.end_ns, samples))
    assert seen[0] == seen[1]


def test_the_other_kind_of_core_gives_the_same_bytes(tmp_path: Path) -> None:
    """A compiled core is compared with pure Python: endpoints, NICs, ports, switches, pauses and faults."""
    names = ("trimming", "pfc", "drain")
    other = output_of("-m", "tests.support.simulated_runs", "1", *names, MRCLAB_PURE=str(int(in_use())))
    assert other == "".join(
        f"{name} {digest(tmp_path / name, carry_out(name, tmp_path / name))}\n" for name in names
    )


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_in_any_process_compiled_or_not() -> None:
    """The hash seeds of the processes differ, so the bytes would differ if they depended on a set's order."""

    run = partial(output_of, "-m", "tests.support.simulated_runs")
    first = run(PYTHONHASHSEED="1", MRCLAB_PURE="1")
    assert len(first.splitlines()) == len(RUNS)
    assert first == run(PYTHONHASHSEED="2", MRCLAB_PURE="0")
