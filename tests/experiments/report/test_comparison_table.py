"""The tables of comparisons on a terminal of 80 columns: nothing is cut."""

from typing import Any

from rich.console import Console, RenderableType

from experiments.measure.effects import render_effects
from experiments.measure.noticed import NO_ROUTING, OBLIVIOUS
from experiments.measure.statistics import summarise
from experiments.report.comparison_table import render_comparison_result
from experiments.spec.transports import NAMED

LATENCIES = [100.0, 128_765.0, 701_600.0]
WHOLE = [580.0, 4_321_098.0, 8_765_432.0]
TRIAL = {"detect_reason": NO_ROUTING, "switch_reason": NO_ROUTING}


def result() -> dict[str, Any]:
    """Every transport, of the longest names, with values as long as they come."""
    metrics = {"latency_us": LATENCIES, "whole_us": WHOLE, "busbw_gbps@256KiB": [0.0123, 12.3]}
    summary = {name: summarise(values).to_dict() for name, values in metrics.items()}
    summary["latency_us"]["n"] = 123_000
    transport = {
        "valid": True,
        "summary": summary,
        "samples": [{"metrics": {name: values[:3] for name, values in metrics.items()}}],
    }
    return {
        "scenario": "s",
        "topology": "lab",
        "target": "ebpf",
        "seed": 1,
        "claim": "",
        "valid": True,
        "validity": {"reasons": [], "notes": []},
        "integrity": "ok",
        "transports": dict.fromkeys(NAMED, transport),
        "trials": [{"transport": "tcp", **TRIAL}, {"transport": "oblivious", "detect_reason": OBLIVIOUS}],
    }


def said(what: RenderableType) -> str:
    console = Console(width=80)
    with console.capture() as found:
        console.print(what)
    return found.get()


def test_a_comparison_fits_into_80_columns() -> None:
    text = said(render_comparison_result(result()))
    assert "…" not in text
    assert "rocev2-16qp-slow-links" in text
    assert "123000" in text, "the count"
    assert "whole_ms" in text
    assert "4 321" in text
    assert "busbw_gbps@256KiB" in text


def test_it_says_why_there_is_no_time() -> None:
    words = " ".join(said(render_comparison_result(result())).split())
    assert f"tcp (no detect and switch): {NO_ROUTING}" in words
    assert f"oblivious (no detect): {OBLIVIOUS}" in words


def test_two_comparisons_side_by_side_fit_into_80_columns() -> None:
    text = said(render_effects(result(), result()))
    assert "…" not in text
    assert "rocev2-16qp-slow-links" in text
    assert "negligible" in text
