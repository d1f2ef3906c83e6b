"""`mrclab perf` in the terminal: its output during a measurement."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from mrclab.perf import _measure


class Pair:
    """Two ends whose measurement reports two intervals, if the caller wants them."""

    def bandwidth(
        self,
        size: int,
        iterations: int,
        depth: int,
        *,
        report_s: float | None,
        told: Callable[[int, int], None],
        **_: Any,
    ) -> None:
        if report_s is not None:
            told(1_000_000_000, 1024)
            told(3_000_000_000, 3072)


@pytest.mark.parametrize("json", [False, True])
def test_a_long_measurement_prints_a_line_for_each_interval(
    json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"test": "write_bw", "iters": None, "qp": 1, "tx_depth": 8, "bidirectional": False}
    args = argparse.Namespace(**options, duration=3.0, json=json, report_gbits=False)
    _measure(Pair(), args, 1 << 20)  # type: ignore[arg-type]
    lines = [
        "  0.0 to 1.0 s: 1024 writes, 1024.00 MiB/sec",
        "  1.0 to 3.0 s: 2048 writes, 1024.00 MiB/sec",
    ]
    assert capsys.readouterr().out.splitlines() == ([] if json else lines)
