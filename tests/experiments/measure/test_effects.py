import copy
from typing import Any

import pytest
from rich.console import Console

from experiments.measure.effects import effect, render_effects
from linux.errors import InputError


def result(*latencies: float) -> dict[str, Any]:
    return {
        "scenario": "s",
        "topology": "tiny",
        "target": "ebpf",
        "seed": 1,
        "valid": True,
        "integrity": "ok",
        "transports": {
            "mrc": {
                "summary": {"latency_us": {"p50": latencies[len(latencies) // 2]}},
                "samples": [{"metrics": {"latency_us": list(latencies)}}],
            }
        },
    }


def test_an_effect_is_of_all_values() -> None:
    found = effect(result(1, 2, 3), result(10, 20, 30), "mrc", "latency_us")
    assert (found.ratio, found.cliffs_delta, found.size) == (10, 1.0, "large")


def test_the_table_has_ratio_interval_and_size() -> None:
    console = Console(width=120, record=True, file=None)
    with console.capture() as said:
        console.print(render_effects(result(1, 2, 3), result(10, 20, 30)))
    assert "latency_us" in said.get()
    assert "large" in said.get()


def test_results_without_a_common_transport_are_refused() -> None:
    other = copy.deepcopy(result(1, 2, 3))
    other["transports"] = {"tcp": other["transports"]["mrc"]}
    with pytest.raises(InputError, match="no transport in common"):
        render_effects(result(1, 2, 3), other)
