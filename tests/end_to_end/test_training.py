"""Training over namespaces: the ranks' bits, the result, and what is said where JAX is missing."""

import json
from pathlib import Path

import jsonschema
import pytest

from experiments.report.result import result_schema
from tests.support.command import Mrclab
from tests.support.training import needs_jax

SCENARIO = """\
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
@pytest.mark.root
@pytest.mark.slow
def test_a_transformer_trained_under_faults_has_the_bits_of_one_process(
    mrclab: Mrclab, tmp_path: Path, machine: None
) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    said = mrclab.ok("run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    jsonschema.validate(result, result_schema())
    found = result["transports"]["mrc"]
    (details,) = found["details"]
    training = details["training"]
    assert training["steps"] == 12
    assert training["parameters_sha256"] == training["alone_sha256"] is not None
    assert training["parameters_differ_at"] is None
    assert {fault["kind"] for fault in found["faults"]} == {"blackhole"}  # the reboot is for one plane
    assert any(trial["felt"] for trial in result["trials"])
    assert found["summary"]["step_us"]["n"] == 12
    for picture in ("training-loss.svg", "training-steps.svg"):
        assert (tmp_path / "out" / picture).stat().st_size > 0
    assert "the same" in said
    assert "The training" in (tmp_path / "out" / "report.html").read_text()
