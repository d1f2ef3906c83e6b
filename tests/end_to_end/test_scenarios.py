"""Whole comparisons of transports on a fabric: the runner, the ranks and the result."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mrclab.experiments.result.model import result_schema
from mrclab.experiments.run.training import progress_of
from mrclab.live.training import Follower
from tests.support.command import Mrclab
from tests.support.training import needs_jax

pytestmark = [pytest.mark.root, pytest.mark.slow]

SCENARIO = """\
name: small
description: a small collective with a fault under it
claim: sums are right whatever breaks
topology: {name: slow, planes: 2, t0: 2, t1: 2, hosts: 4,
           links: {host: {rate: 100 Mbit/s}, fabric: {rate: 100 Mbit/s}}}
target: ebpf
transports: [mrc, single-plane]
workload: {kind: all-reduce, sizes: [64 KiB], iterations: 20}
faults:
  - {kind: blackhole, where: random, at: 20 ms, duration: 100 ms}
repetitions: 2
warmup: 100 ms
"""


def run(mrclab: Mrclab, tmp_path: Path, text: str, *words: str) -> dict[str, Any]:
    (tmp_path / "small.yaml").write_text(text)
    mrclab.ok("run", str(tmp_path / "small.yaml"), "--target", "ebpf", "--out", str(tmp_path / "out"), *words)
    result: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    jsonschema.validate(result, result_schema())
    assert result["integrity"] == "ok"
    for left in ("report.html", "trials.csv", "delivered.svg", "delivered.png"):
        assert (tmp_path / "out" / left).stat().st_size > 0
    return result


def test_an_all_reduce_is_right_with_a_fault_under_it(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    # The links are slow. If the rate were too high for the machine, rehearsals would look for a lower rate,
    # and each rehearsal brings up a fabric for each transport.
    result = run(mrclab, tmp_path, SCENARIO.replace("100 Mbit/s", "10 Mbit/s"))
    at_us = 20_000 * result["parameters"].get("slower", 1)  # on a slow machine, the run is in slow motion
    assert list(result["transports"]) == ["mrc", "single-plane"]
    for name, found in result["transports"].items():
        assert found["summary"]["busbw_gbps@64KiB"]["n"] == 40
        assert [fault["repetition"] for fault in found["faults"]] == [0, 1]
        for fault in found["faults"]:
            assert at_us <= fault["at_us"], "later on a machine that is busy, but never sooner"
            assert fault["restore_after_ns"] - fault["t_before_ns"] > 0
        keys = {"start_us", "bin_us", "bytes", "lost", "repetition"}
        assert all(set(series) == keys and sum(series["bytes"]) > 0 for series in found["series"])
        with np.load(tmp_path / "out" / f"{name}-0" / "data.npz") as data:
            assert len(data["rank3_end_ns"]) == 20
    assert result["transports"]["single-plane"]["one_plane"]
    assert len(result["trials"]) == 4


# Every machine can send at this rate. A rehearsal would bring up another fabric for each transport.
STREAM = (
    SCENARIO.replace(
        "all-reduce, sizes: [64 KiB], iterations: 20", "stream, rate: 20 Mbit/s, duration: 300 ms"
    )
    + "rehearse: no\n"
)


def test_a_stream_tells_goodput_latency_and_recovery(mrclab: Mrclab, tmp_path: Path) -> None:
    result = run(mrclab, tmp_path, STREAM, "--trials", "1", "--set", "transports=[mrc]")
    summary = result["transports"]["mrc"]["summary"]
    goodput_mbps = summary["goodput_mbps"]["p50"]
    assert 0 < goodput_mbps < 22
    if result["valid"]:  # a machine that does not keep up delivers less
        assert goodput_mbps > 10
        assert summary["latency_us"]["n"] > 50
    assert goodput_mbps == pytest.approx(summary["latency_us"]["n"] * 8192 * 8 / 300_000, rel=0.02)
    (trial,) = result["trials"]
    assert trial["felt"] is (trial["recovered_us"] is not None)
    # The scenario does not ask for captures, so they are deleted after the measurement.
    assert (tmp_path / "out" / "mrc-0" / "faults.json").exists()
    assert not (tmp_path / "out" / "mrc-0" / "captures").exists()


def test_a_stream_tells_when_it_noticed_and_left_a_fault_and_captures_it(
    mrclab: Mrclab, tmp_path: Path
) -> None:
    transports = "transports={mrc: , oblivious: , bfd: {use: ecmp+controller, detection: 60 ms}}"
    # The cut link carries the only flow, so the fault affects all three transports.
    faults = "faults=[{kind: blackhole, where: busiest, at: 300 ms, duration: 1 s}]"
    overrides = ["--trials", "1", "--set", transports, "--set", faults, "--set", "measure.capture=true"]
    overrides += ["--set", "workload.duration=1500 ms"]
    result = run(mrclab, tmp_path, STREAM, *overrides)
    # If the machine stalls while the link is dead, no packet is lost, and the run is not valid.
    missed = [trial["first_loss_reason"] for trial in result["trials"] if not trial["felt"]]
    assert not (missed and result["valid"]), missed
    felt = {trial["transport"]: trial for trial in result["trials"] if trial["felt"]}
    if mrc := felt.get("mrc"):
        assert 0 < mrc["detected_us"] <= mrc["recovered_us"] < 1_000_000
        assert 0 <= mrc["rerouted_us"] < 1_000_000
    if oblivious := felt.get("oblivious"):
        assert oblivious["detected_us"] is None
        assert oblivious["detected_reason"].startswith("not applicable: ")
    if bfd := felt.get("bfd"):
        assert 30_000 < bfd["detected_us"] < 500_000
    for name in ("mrc", "oblivious", "bfd"):
        left = tmp_path / "out" / f"{name}-0"
        sizes = [file.stat().st_size for file in (left / "captures").glob("*.pcap")]
        assert len(sizes) == 2
        assert all(size > 1000 for size in sizes)
        assert set(json.loads((left / "recording.json").read_text())["captures"]) == {"h0", "h2"}


@pytest.mark.parametrize("kind", ["request-response", "all-to-all"])
def test_other_workloads_run(mrclab: Mrclab, tmp_path: Path, kind: str) -> None:
    # One plane is enough, because this test does not look at the planes. Every machine can fill slow links.
    sets = ["--trials", "1", "--set", "transports=[mrc]", "--set", "faults=[]", "--set", "topology.planes=1"]
    sets += ["--set", "rehearse=no", "--set", "topology.links.host.rate=10 Mbit/s"]
    if kind == "request-response":
        kind += ", duration: 200 ms"
    sets += ["--set", f"workload={{kind: {kind}}}"]
    text = SCENARIO.replace("all-reduce, sizes: [64 KiB], iterations: 20", "stream")
    # `--set` merges a mapping into the old one. Here the new mapping has only the key `kind`.
    result = run(mrclab, tmp_path, text, *sets)
    names = {name.split("@")[0] for name in result["transports"]["mrc"]["summary"]}
    assert names & {"latency_us", "step_us", "busbw_gbps"}


def test_ctrl_c_leaves_nothing_behind(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    (tmp_path / "long.yaml").write_text(
        STREAM.replace("300 ms", "100 s").replace("warmup", "limit: 200 s\nwarmup")
    )
    command = mrclab.command(
        "run", str(tmp_path / "long.yaml"), "--target", "ebpf", "--out", str(tmp_path / "out")
    )
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(command, env=mrclab.environment, stdout=said, stderr=said)
    deadline = time.monotonic() + 60
    while "MRC: sprays" not in (tmp_path / "said").read_text() or not mrclab.names.state_dir.exists():
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < deadline
        signal.sigtimedwait([], 0.05)
    signal.sigtimedwait([], 2.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert "nothing to clean" in mrclab.ok("clean")


def test_a_dry_run_touches_nothing(mrclab: Mrclab, tmp_path: Path, machine: None) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    said = mrclab.ok("run", str(tmp_path / "small.yaml"), "--dry-run", "--out", str(tmp_path / "out"))
    assert "transport single-plane: mrc over srv6, slow-1plane with 1 planes" in said
    assert not (tmp_path / "out").exists()


OWN = """\
name: own
description: two transports, a delay, a flap and captures
topology: tiny
transports: [mrc, tcp]
workload: {kind: stream, message_bytes: 8 KiB, rate: 20 Mbit/s, duration: 2 s}
faults:
  - {kind: delay, where: random, delay: 2 ms, at: 300 ms, duration: 400 ms}
  - {kind: flap, where: busiest, at: 1 s, duration: 800 ms, period: 400 ms, down: 100 ms}
measure: {capture: true}
repetitions: 1
warmup: 300 ms
rehearse: no
"""


def test_a_scenario_of_ones_own_mixes_transports_and_faults(mrclab: Mrclab, tmp_path: Path) -> None:
    result = run(mrclab, tmp_path, OWN)
    assert {trial["transport"] for trial in result["trials"]} == {"mrc", "tcp"}
    for name in ("mrc", "tcp"):
        kinds = [trial["fault"]["kind"] for trial in result["trials"] if trial["transport"] == name]
        assert kinds == ["delay", "blackhole", "blackhole"]
        captures = tmp_path / "out" / f"{name}-0" / "captures"
        assert {file.name for file in captures.iterdir()} == {"h0.pcap", "h2.pcap"}
    assert all(trial["felt"] is (trial["recovered_us"] is not None) for trial in result["trials"])
    # The machine's load may make the run invalid, but a delay that loses no packet must not.
    assert not [why for why in result["validity"]["reasons"] if "the fault was none" in why]


TRAINING = """\
name: small
topology: tiny
target: ebpf
figure: training
claim: it goes on
transports: {mrc: {}}
workload: {kind: transformer, ranks: 2, steps: 12, compute: 20 ms, layers: 1, width: 16, context: 8, batch: 2}
faults:
  - {kind: blackhole, where: "p0-t0-*:p0-t1-*", at: 60 ms, duration: 150 ms, over: planes}
  - {kind: switch-reboot, where: random, at: 60 ms, duration: 150 ms, over: one-plane}
repetitions: 1
warmup: 100 ms
"""


@needs_jax
def test_a_transformer_trained_under_faults_has_the_bits_of_one_process(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    result = run(mrclab, tmp_path, TRAINING)
    found = result["transports"]["mrc"]
    training = found["details"][0]["training"]
    assert training["steps"] == found["summary"]["step_us"]["n"] == 12
    assert training["parameters_sha256"] == training["alone_sha256"] is not None
    assert training["parameters_differ_at"] is None
    assert {fault["kind"] for fault in found["faults"]} == {"blackhole"}  # the other transport has the reboot
    assert any(trial["felt"] for trial in result["trials"])
    for picture in ("training-loss.svg", "training-steps.svg"):
        assert (tmp_path / "out" / picture).stat().st_size > 0
    told = progress_of(tmp_path / "out" / "mrc-0")
    assert told is not None
    assert len(told.losses) == len(told.end_us) == 12
    assert all(own <= last + 1 for own, last in zip(told.end_us, training["end_us"], strict=True))
    assert [fault["kind"] for fault in told.faults] == ["blackhole"] * len(found["faults"])
    assert all(fault["until_us"] > fault["at_us"] for fault in told.faults)
    shown = Follower(tmp_path / "out").frame()
    assert (shown["about"]["finished"], len(shown["mrc-0"]["losses"])) == (True, 12)
