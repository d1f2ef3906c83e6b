"""The output of programs: their numbers, their failures, and bytes that completed but never arrived."""

from __future__ import annotations

import signal
from pathlib import Path

from mrclab.experiments.measure.program_output import (
    MOST_CHARACTERS,
    failure_of,
    found_in,
    program_metrics,
    values_in,
)

TABLE = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             126.93             73.39  \t\t   0.001174
"""


def test_the_only_group_of_each_match_is_a_value() -> None:
    assert values_in(TABLE, r"^ *65536 +\d+ +[\d.]+ +([\d.]+)") == [73.39]
    assert values_in("a 1,200 a 3 a x\na 4e2", "a ([0-9,.e]+|x)") == [1200, 3, 400]
    assert values_in("v=nan v=inf v=5", "v=([a-z0-9]+)") == [5]
    assert values_in("x", "(y)?") == []


def test_an_output_that_is_no_text_or_gone_has_no_values(tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert found_in(file, {"a": "(.)"}) == {"a": []}
    file.write_bytes(b"\xff\xfe rate=7\n")
    assert found_in(file, {"rate": "rate=([0-9]+)"}) == {"rate": [7]}


def test_a_failure_is_one_line_with_the_last_line_of_the_output(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("first\n\x1b[31mNo such device\x07" + "x" * 1000 + "\n\n")
    said = failure_of("h0", ("/usr/bin/ib_write_bw", "-n", "5"), 1, file)
    assert said.startswith("h0 ib_write_bw exit code 1 ([31mNo such devicexxx")
    assert len(said) < MOST_CHARACTERS + 50
    assert failure_of("h0", ("x",), -signal.SIGKILL, tmp_path / "none") == "h0 x ended by SIGKILL"


def test_metrics_are_those_of_all_programs_together() -> None:
    details = {
        "requests": [{"bytes": 5}, {"bytes": 6}],
        "programs": [{"metrics": {"rate": [1.0]}}, {"metrics": {"rate": [2.0], "other": []}}],
    }
    assert program_metrics(details, [9.0]) == {
        "goodput_mbps": [9.0],
        "completed_bytes": [11.0],
        "rate": [1.0, 2.0],
        "other": [],
    }
    assert program_metrics({}, None) == {"completed_bytes": [0.0]}
