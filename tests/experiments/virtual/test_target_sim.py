"""The target `sim`: an ordinary user runs scenarios in virtual time. Results are like those of live runs."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.result.file import load_result
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.scenario import parse_overrides, parse_scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.experiments.virtual.engine import run_scenario
from mrclab.hosts.training.model import Settings
from mrclab.linux.errors import InputError
from tests.support.goodput import goodputs_mbps
from tests.support.paths import ROOT
from tests.support.training import SMALL as TINY_MODEL
from tests.support.training import needs_jax, replicas

SMALL: dict[str, Any] = {
    "name": "small",
    "planes": 2,
    "t0": 2,
    "t1": 4,
    "hosts": 4,
    "links": {k: {"rate": "100 Gbit/s", "delay": "500 ns"} for k in ("host", "fabric")},
}


def run(tmp_path: Path, **scenario: Any) -> list[Repetition]:
    """Run a scenario on the small fabric. Return the repetitions of its only transport."""
    text = json.dumps({"name": "test", "topology": SMALL, "target": "sim", "repetitions": 1, **scenario})
    return carry_out(tmp_path, parse_scenario(text, "test.yaml"))["mrc"]


def carry_out(tmp_path: Path, scenario: Scenario) -> dict[str, list[Repetition]]:
    outcome, steps = Outcome(), list[int]()
    run_scenario(scenario, tmp_path, outcome, say=lambda text: None, step=steps.append)
    assert steps[-1] == scenario.steps
    return outcome.repetitions


@pytest.mark.slow
def test_a_cut_under_a_spray_is_timed_from_the_capture(tmp_path: Path) -> None:
    (found,) = run(
        tmp_path,
        workload={"kind": "spray", "rate": "100 Gbit/s", "message_bytes": 16384},
        faults=[{"kind": "blackhole", "where": "random", "trials": 2, "hold": "100 us", "settle": "10 us"}],
        warmup="20 us",
        measure={"capture": True, "series": "10 us"},
    )
    assert found.problem is None
    assert found.failure is None
    assert found.validity.valid, found.validity.reasons
    assert len(found.trials) == 2
    for trial in found.trials:
        assert trial["integrity"] == "ok"
        assert 0 <= trial["first_loss_us"] < trial["detected_us"] < trial["recovered_us"] < 100
        checks = {check["name"]: check["ok"] for check in trial["checks"]}
        assert checks["no_loss_elsewhere"]
        # The RTT has eight delays of 500 ns, 338 ns for a full packet on each of four links, and 200 ns in
        # which the NIC reacts.
        assert 4 + 4 * 0.338 < trial["rtt_us"] < 6.5
    assert {path.name for path in (tmp_path / "mrc-0" / "captures").iterdir()} == {"h0.pcap", "h2.pcap"}
    assert (tmp_path / "mrc-0" / "events" / "h0.jsonl").read_text().count("ev_retired") >= 2


def test_losses_all_over_are_told_from_those_of_a_cut_in_a_run_of_a_millisecond(tmp_path: Path) -> None:
    (found,) = run(
        tmp_path,
        transports={"mrc": {"loss": 0.001}},
        workload={"kind": "spray", "rate": "100 Gbit/s", "message_bytes": 16384},
        faults=[{"kind": "blackhole", "where": "random", "trials": 2, "hold": "300 us", "settle": "10 us"}],
        warmup="300 us",
    )
    assert sum(trial["lost_elsewhere"] for trial in found.trials) > 0
    for trial in found.trials:
        (check,) = (check for check in trial["checks"] if check["name"] == "no_loss_elsewhere")
        assert check["ok"] is (trial["lost_elsewhere"] == 0)
        assert trial["in_flight_us"] < 100


@pytest.mark.parametrize("kind", ["corruption", "delay"])
def test_a_fault_that_lets_frames_through_spoils_no_run(tmp_path: Path, kind: str) -> None:
    more = {"corruption": {"ratio": 0.2}, "delay": {"delay": "1 us"}}[kind]
    fault = {"kind": kind, "where": "random", "trials": 2, "hold": "100 us", "settle": "10 us", **more}
    (found,) = run(
        tmp_path,
        workload={"kind": "spray", "rate": "100 Gbit/s", "message_bytes": 16384},
        faults=[fault],
        warmup="20 us",
    )
    assert not [why for why in found.validity.reasons if "the fault was none" in why]
    for trial in found.trials:
        checks = {check["name"]: check["ok"] for check in trial["checks"]}
        assert checks["fault_effective"] is None
        assert checks["no_loss_elsewhere"]
        assert (trial["lost_packets"] > 0) is (kind == "corruption")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "evs"), [("mrc-structured", 8), ("mrc-ecmp", 128)])
def test_a_spray_without_segment_lists_has_the_evs_of_its_mode(tmp_path: Path, name: str, evs: int) -> None:
    text = json.dumps(
        {
            "name": "test",
            "topology": SMALL,
            "target": "sim",
            "repetitions": 1,
            "transports": [name],
            "workload": {"kind": "spray", "rate": "100 Gbit/s", "message_bytes": 16384},
            "faults": [
                {"kind": "blackhole", "where": "random", "trials": 2, "hold": "300 us", "settle": "10 us"}
            ],
            "warmup": "50 us",
        }
    )
    (found,) = carry_out(tmp_path, parse_scenario(text, "test.yaml"))[name]
    for trial in found.trials:
        assert trial["felt"]
        assert trial["evs_used"] == trial["paths_used"] <= evs
        checks = {check["name"]: check["ok"] for check in trial["checks"]}
        assert checks["fault_effective"]
        assert checks["ev_matches_path"]
        assert checks["only_broken_evs_retired"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("permutation", {"message_bytes": 65536, "duration": "200 us"}),
        ("incast", {"message_bytes": 65536, "duration": "200 us"}),
        ("request-response", {"duration": "200 us"}),
        ("all-reduce", {"sizes": 65536, "iterations": 2}),
        ("all-to-all", {"sizes": 65536, "iterations": 2, "ranks_per_host": 2}),
        ("training", {"size": 65536, "steps": 2, "compute": "10 us"}),
    ],
)
def test_every_workload_of_ranks_delivers_what_it_sends(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    (found,) = run(tmp_path, workload={"kind": kind, **options}, warmup="20 us", limit="100 ms")
    assert found.problem is None
    assert found.failure is None
    assert found.bytes_delivered > 0
    assert found.metrics


def test_the_reboot_of_a_drained_t1_loses_nothing(tmp_path: Path) -> None:
    reboot = {"kind": "switch-reboot", "where": "p1-t1-1", "at": "60 us", "duration": "60 us"}
    drain = {"kind": "drain", "where": "p1-t1-1", "at": "20 us", "duration": "130 us"}
    workload = {"kind": "stream", "message_bytes": 65536, "duration": "200 us"}
    felt = []
    for faults in ([reboot], [drain, reboot]):
        (found,) = run(tmp_path, workload=workload, faults=faults, warmup="20 us")
        (trial,) = found.trials
        felt.append(trial["felt"])
    assert felt == [True, False]
    log = (tmp_path / "mrc-0" / "events" / "rank0.jsonl").read_text()
    assert '"reason":"denied"' in log
    assert "ev_restored" in log


@pytest.mark.slow
def test_rocev2_waits_for_routes_where_mrc_does_not(tmp_path: Path) -> None:
    scenario = {
        "name": "test",
        "topology": SMALL,
        "target": "sim",
        "repetitions": 1,
        "transports": {"mrc": {}, "routed": {"use": "rocev2", "detection": "300 us"}},
        "workload": {"kind": "stream", "message_bytes": 65536, "duration": "2 ms"},
        "faults": [{"kind": "blackhole", "where": "busiest", "at": "100 us"}],
        "warmup": "50 us",
    }
    found = carry_out(tmp_path, parse_scenario(json.dumps(scenario), "test.yaml"))
    mrc, routed = (found[name][0].trials[0] for name in ("mrc", "routed"))
    assert mrc["recovered_us"] < 60
    assert 200 <= routed["detected_us"] <= 310
    assert routed["recovered_us"] is None or routed["recovered_us"] > 200


def test_the_rate_of_a_spray_does_not_depend_on_its_warm_up(tmp_path: Path) -> None:
    for warmup in ("100 us", "2 ms"):
        (found,) = run(
            tmp_path,
            workload={"kind": "spray", "rate": "10 Gbit/s", "message_bytes": 16384, "duration": "1 ms"},
            warmup=warmup,
            measure={"capture": True},
        )
        assert found.metrics["goodput_mbps"] == [pytest.approx(10_000, rel=0.05)]
        sample = {name: getattr(found, name) for name in ("measure_ns", "end_ns", "metrics")}
        result = {"transports": {"mrc": {"samples": [sample]}}}
        said, captured = goodputs_mbps(tmp_path, result, "h2")
        assert said == pytest.approx(captured, rel=0.01)


@pytest.mark.parametrize(("links", "wire_us"), [("wires", 4 + 4 * 4.0 / 12.5), ("buckets", 4)])
def test_a_lone_packets_rtt_is_the_wires_and_the_hosts(tmp_path: Path, links: str, wire_us: float) -> None:
    (found,) = run(
        tmp_path,
        workload={"kind": "spray", "rate": "100 Mbit/s", "message_bytes": 4096, "duration": "2 ms"},
        faults=[{"kind": "blackhole", "where": "p0-t0-1:p0-t1-3", "at": "1900 us"}],
        virtual={"processing": "7 us", "links": links},
        warmup="200 us",
    )
    (trial,) = found.trials
    # Headers and the SACK take less than 60 ns on each link. A bucket sends a single frame at once.
    assert wire_us + 7 <= trial["rtt_us"] <= wire_us + 7 + 4 * 0.06


@pytest.mark.slow
@needs_jax
def test_a_training_has_the_same_bits_with_and_without_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = {
        "name": "test",
        "topology": SMALL,
        "target": "sim",
        "repetitions": 1,
        "warmup": "20 us",
        "transports": {"mrc": {}, "control": {"use": "mrc", "faults": False}},
        "workload": {"kind": "transformer", **TINY_MODEL, "ranks": 2, "steps": 4, "compute": "100 us"},
        "faults": [{"kind": "blackhole", "where": "p0-t0-*:p0-t1-*", "at": "110 us"}],
    }
    with replicas(Settings.of(TINY_MODEL, ranks=2, seed=1)) as ours:
        monkeypatch.setattr("mrclab.hosts.training.job.HereCompute", lambda settings, rank: ours[rank])
        found = carry_out(tmp_path, parse_scenario(json.dumps(scenario), "test.yaml"))
    mrc, control = (found[name][0] for name in ("mrc", "control"))
    for repetition in (mrc, control):
        training = repetition.details["training"]
        assert training["steps"] == 4
        assert training["parameters_differ_at"] is None
        assert training["parameters_sha256"] == training["alone_sha256"] is not None
        assert training["losses"] == control.details["training"]["losses"]
    assert any(trial["felt"] for trial in mrc.trials)
    assert mrc.metrics["lost_steps"] == [0]


def test_what_only_a_kernel_has_is_refused_in_one_line(tmp_path: Path) -> None:
    workload = {"kind": "stream", "duration": "1 ms"}
    with pytest.raises(InputError, match="leave it out with --target sim"):
        run(tmp_path, workload=workload, transports=["tcp"])
    with pytest.raises(InputError, match="tcp needs Linux's own TCP"):
        run(tmp_path, workload=workload, transports=["mrc", "tcp"])
    assert list(tmp_path.iterdir()) == []  # refused before the first transport ran
    with pytest.raises(InputError, match="a mesh needs a live target"):
        run(tmp_path, workload={"kind": "mesh"})


def test_a_part_for_the_target_may_choose_the_topology_unless_the_user_does() -> None:
    text, where = SCENARIOS.text("link-kill")
    assert parse_scenario(text, where, parse_overrides((), topology=None, target="sim")).topology == "paper-c"
    asked = parse_overrides((), topology="lab", target="sim")
    assert parse_scenario(text, where, asked).topology == "lab"
    assert parse_scenario(text, where).topology == "lab"


PR_CAPBSET_DROP = 24


def give_up_all_capabilities() -> None:
    """Drop all capabilities of root, so that the next executed program runs without them."""
    prctl = ctypes.CDLL(None).prctl
    for capability in range(64):
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.slow
def test_whoever_has_no_capabilities_runs_link_kill(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
status = Path("/proc/self/status").read_text()
assert "CapEff:\t0000000000000000" in status, status
from mrclab.cli import main
sys.exit(main())
"""
    out = tmp_path / "out"
    words = ["run", "link-kill", "--target", "sim", "--trials", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=give_up_all_capabilities,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = load_result(out)
    assert result["schema"] == "mrclab.result/2"
    assert (result["target"], result["topology"], result["integrity"]) == ("sim", "paper-c", "ok")
    assert len(result["trials"]) == 2
    assert list(out.glob("*.html"))


def test_a_control_meets_no_fault(tmp_path: Path) -> None:
    scenario = {
        "name": "test",
        "topology": SMALL,
        "target": "sim",
        "repetitions": 1,
        "transports": {"mrc": None, "control": {"use": "mrc", "faults": False}},
        "workload": {"kind": "spray", "rate": "1 Gbit/s", "duration": "300 us"},
        "faults": [{"kind": "plane-death", "where": "p1", "at": "100 us"}],
        "warmup": "20 us",
    }
    found = carry_out(tmp_path, parse_scenario(json.dumps(scenario), "test.yaml"))
    assert [len(found[name][0].faults) for name in ("mrc", "control")] == [1, 0]


def test_an_operator_drains_a_plane_in_virtual_time(tmp_path: Path) -> None:
    """During the spray, a plane's EVs are denied and allowed again. The traffic leaves and comes back."""
    (found,) = run(
        tmp_path,
        workload={"kind": "spray", "rate": "20 Gbit/s", "message_bytes": 16384, "duration": "600 us"},
        profiles=[
            {"do": "deny", "ports": [2], "at": "200 us"},
            {"do": "allow", "ports": [2], "at": "400 us", "hosts": "h*"},
        ],
        warmup="100 us",
        measure={"links": "p1-t0-0:p1-t1-*"},
    )
    assert (found.problem, found.failure) == (None, None)
    assert (found.counters["lost"], found.counters["retransmitted"]) == (0, 0)
    noted = [note for note in found.validity.notes if "profiles" in note]
    assert noted == [
        f"profiles at {at} ms: {host}: {do}, 4 EVs"
        for at, do in (("0.2", "deny"), ("0.4", "allow"))
        for host in ("h0", "h2")
    ]
    assert found.links["bin_us"] == 20
    carried = [sum(bins) for bins in zip(*found.links["bytes"].values(), strict=True)]
    assert min(carried[:10]) > 0
    assert carried[11:20] == [0] * 9, "nothing but what was on its way is on the plane"
    assert min(carried[21:29]) > 0


def test_a_change_of_profiles_that_fails_makes_a_run_invalid(tmp_path: Path) -> None:
    (found,) = run(
        tmp_path,
        workload={"kind": "spray", "rate": "2 Gbit/s", "message_bytes": 4096, "duration": "50 us"},
        profiles=[{"do": "replace", "evs": ["0x1@1", "0x2@1"], "at": "10 us", "hosts": "h0"}],
        warmup="10 us",
    )
    assert not found.validity.valid
    assert any("EINVAL" in reason for reason in found.validity.reasons)
