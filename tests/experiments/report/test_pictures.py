"""The lines, marks and words of a report's pictures, read from Matplotlib's figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.report import packet_pictures
from mrclab.experiments.report.pictures import draw_bandwidth, draw_delivered, draw_spread, style_of
from tests.support.made_results import over_time, result

SPRAYS = ("recovery", "delivered-rate", "ev-activity", "reordering", "delivery-times")


@pytest.fixture(scope="module")
def drawn(spray: dict[str, Any]) -> dict[str, Figure]:
    return packet_pictures.draw(spray)


@pytest.fixture(scope="module")
def data(spray: dict[str, Any]) -> dict[str, Any]:
    (found,) = spray["transports"]["mrc"]["pictures"]
    return dict(found)


@pytest.fixture(scope="module")
def trial(spray: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    return dict(next(t for t in spray["trials"] if t["trial"] == data["packets"]["trial"]))


def only(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def words_of(axes: Axes) -> list[str]:
    """Return the words in the legend of a picture."""
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def line(axes: Axes, words: str) -> tuple[Any, Any]:
    """Return the x and y values of the one line whose label begins with ``words``."""
    (found,) = (each for each in axes.get_lines() if str(each.get_label()).startswith(words))
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def test_each_has_a_title_axes_with_words_and_room_for_its_legend(drawn: dict[str, Figure]) -> None:
    assert tuple(drawn) == SPRAYS
    for name, figure in drawn.items():
        assert figure.axes[0].get_title().startswith("link-kill on lab (ebpf): ")
        assert figure.axes[-1].get_xlabel()
        assert all(axes.get_ylabel() or axes.get_yticklabels() for axes in figure.axes), name
    for name in SPRAYS[:3]:
        figure = drawn[name]
        figure.draw_without_rendering()
        for axes in figure.axes:
            legend = axes.get_legend()
            assert legend is not None
            assert not legend.get_window_extent().overlaps(axes.get_window_extent()), name


def test_a_recovery_shows_every_packet_and_time(
    drawn: dict[str, Figure], data: dict[str, Any], trial: dict[str, Any]
) -> None:
    axes, packets = only(drawn["recovery"]), data["packets"]
    words = {
        "sent": "sent",
        "delivered": "delivered",
        "redelivered": "delivered, retransmitted",
        "lost": "lost",
        "resent": "retransmission sent",
    }
    shown = {str(marks.get_label()): np.asarray(marks.get_offsets()) for marks in axes.collections}
    assert set(shown) == set(words.values())
    for key, label in words.items():
        assert shown[label].tolist() == [list(at) for at in zip(*packets[key].values(), strict=True)]
    assert line(axes, "fault")[0].tolist() == [0, 0]
    for name in ("detected", "rerouted", "recovered"):
        assert line(axes, name)[0].tolist() == [trial[f"{name}_us"]] * 2
    low, high = axes.get_xlim()
    assert low < packets["from_us"] < packets["to_us"] < high  # no mark is cut off
    assert len(words_of(axes)) == len(words) + 4


def test_broken_paths_go_flat_and_all_together_follow_the_line_of_before(drawn: dict[str, Figure]) -> None:
    every, broken = drawn["delivered-rate"].axes
    for axes, label, ends in ((every, "all paths", (0.9, 1.1)), (broken, "paths that broke", (0.0, 0.6))):
        t_us, delivered = line(axes, label)
        _, ideal = line(axes, "rate of before")
        assert (np.diff(delivered) >= 0).all()
        assert ends[0] <= delivered[-1] / ideal[-1] <= ends[1]
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylabel() == "delivered (kB)"
    after = delivered[t_us > 100]
    assert after[0] == after[-1] > 0
    assert broken.get_xlabel() == "time since the fault (\N{MICRO SIGN}s)"


@pytest.mark.parametrize(("name", "key"), [("reordering", "reordering"), ("delivery-times", "no_fault")])
def test_a_share_of_at_least_x_falls_behind_x(
    drawn: dict[str, Figure], data: dict[str, Any], name: str, key: str
) -> None:
    curve = data["spread"][key] if name == "reordering" else data["spread"]["delivery_us"][key]
    (steps, *_) = only(drawn[name]).get_lines()
    assert steps.get_drawstyle() == "steps-pre"
    assert np.asarray(steps.get_ydata()).tolist() == curve["share"]


def test_evs_have_a_row_each_with_what_was_lost_and_broken(
    drawn: dict[str, Figure], data: dict[str, Any], trial: dict[str, Any]
) -> None:
    axes, paths = only(drawn["ev-activity"]), data["paths"]
    rows = paths["rows"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"plane {row['plane']}, T1 {row['t1']}" for row in rows
    ]
    sent, resent, again, lost = axes.collections
    assert [len(lines.get_paths()) for lines in (sent, resent)] == [len(paths["sent"]), len(paths["resent"])]
    for marks, key in ((again, "resent"), (lost, "lost")):
        assert np.asarray(marks.get_offsets())[:, 1].tolist() == [row for row, _, _ in paths[key]]
    assert len(axes.patches) == len(paths["retired"])
    cut = [row for row, path in enumerate(rows) if path["cut"]]
    edges = [each for each in axes.get_lines() if list(each.get_xdata()) == [0, paths["repaired_ms"]]]
    assert sorted({float(np.mean(each.get_ydata())) for each in edges}) == sorted(
        {row + half for row in cut for half in (-0.5, 0.5)}
    )
    assert {row for row, _, _ in paths["lost"]} <= set(cut)
    assert trial["fault"]["where"] in axes.get_title()
    wanted = {"packets sent", "lost", "retransmission", "EV retired", "path broken", "repaired"}
    assert set(words_of(axes)) == wanted


def test_reordering_is_drawn_where_there_is_any(spray: dict[str, Any], drawn: dict[str, Figure]) -> None:
    axes = only(drawn["reordering"])
    (curve,) = axes.get_lines()
    share = np.asarray(curve.get_ydata(), float)
    assert share[0] == 1
    assert (np.diff(share) <= 0).all()
    in_order = deepcopy(spray)
    in_order["transports"]["mrc"]["pictures"][0]["spread"]["out_of_order"] = 0.0
    assert tuple(packet_pictures.draw(in_order)) == tuple(name for name in SPRAYS if name != "reordering")


def test_delivery_takes_longer_while_a_fault_lasts(drawn: dict[str, Figure]) -> None:
    axes = only(drawn["delivery-times"])
    assert words_of(axes) == ["no fault", "while a fault lasts"]
    assert line(axes, "no fault")[0].max() < line(axes, "while a fault lasts")[0].max()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("faults", [[], [("p0-t0-0:p0-t1-1", 0.2, 0.4), ("p1-t0-0:p1-t1-1", 0.6, None)]])
def test_delivered_has_a_panel_for_each_transport_and_red_only_for_faults(faults: list[Any]) -> None:
    parts = {
        "mrc": over_time(lambda t: 80 if t < 0.5 else 40, 1, faults=faults),
        "control": over_time(lambda t: 80, 1),
    }
    figure = draw_delivered(result({}, parts, scenario="s", target="sim") | {"topology": "thin"})
    mrc, control = figure.axes
    assert [axes.get_title() + axes.get_title(loc="left") for axes in figure.axes] == ["mrc", "control"]
    assert {axes.get_ylabel() for axes in figure.axes} == {"Mbit/s"}
    title = figure.get_suptitle()
    assert "delivered payload, bins of 10 ms" in title
    assert ("red: a fault lasts" in title) == bool(faults)
    assert control.get_xlabel() == "time since the measurement's start (ms)"
    assert [len(axes.patches) for axes in figure.axes] == [len(faults), 0]
    assert len(mrc.get_lines()) == 6 + 1 + len(faults)  # repetitions, mean, starts of faults
    assert len(control.get_lines()) == 6 + 1
    t_ms, mean = (np.asarray(values, float) for values in mrc.get_lines()[6].get_data())
    assert mean[t_ms < 500] == pytest.approx(80, rel=0.01)
    assert mean[t_ms > 510] == pytest.approx(40, rel=0.01)
    assert mrc.get_ylim()[0] == 0
    if faults:
        begin, end = (patch.get_extents() for patch in mrc.patches)
        assert mrc.transData.inverted().transform(begin)[:, 0] == pytest.approx([200, 400])
        assert mrc.transData.inverted().transform(end)[0, 0] == pytest.approx(600)


@pytest.mark.parametrize(
    ("fast", "slow", "unit"),
    [([5.0, 20.0, 10.0], [40.0, 400.0], "\N{MICRO SIGN}s"), ([0.0, 2e5, 4e5], [5e6], "ms")],
)
def test_a_distribution_rises_to_one_on_an_axis_that_holds_all_of_it(
    fast: Sequence[float], slow: Sequence[float], unit: str
) -> None:
    figure = draw_spread("a time", {"mrc": fast, "none": [], "bgp": slow})
    axes = only(figure)
    scale = 1.0 if unit != "ms" else 1e-3
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel().startswith(f"a time ({unit}, logarithmic")
    assert ("at the left edge" in axes.get_xlabel()) == (0.0 in fast)
    assert axes.get_ylabel() == "share of values up to x"
    assert axes.get_ylim() == (0, 1.02)
    assert [words.partition(":")[0] for words in words_of(axes)] == ["mrc", "bgp"]
    left, right = axes.get_xlim()
    for name, values in (("mrc", fast), ("bgp", slow)):
        x, y = line(axes, f"{name}: median ")
        assert (y[0], y[-1]) == (0, 1)
        assert (np.diff(y) >= 0).all()
        assert x[-1] == pytest.approx(max(values) * scale)
        assert left <= x.min()
        assert x.max() <= right
    assert f"n {len(fast)}" in words_of(axes)[0]
    assert right < 10 * max(slow) * scale
    figure.draw_without_rendering()
    marks = {mark.get_text() for which in ("major", "minor") for mark in axes.get_xticklabels(which=which)}
    assert all(re.fullmatch(r"|0\.\d+|\d{1,3}(,\d{3})*", mark) for mark in marks), marks
    assert {"10", "100"} <= marks


def test_bandwidth_has_a_line_for_each_transport_over_the_sizes() -> None:
    sizes = ["64KiB", "1MiB"]

    def part(*gbps: float) -> dict[str, Any]:
        return {
            "summary": {
                f"busbw_gbps@{size}": {"n": 3, "p50": value, "ci95_p50": [value - 1, value + 1]}
                for size, value in zip(sizes, gbps, strict=False)
            }
        }

    axes = only(draw_bandwidth({"mrc": part(10, 90), "tcp": part(5)}, sizes))
    assert words_of(axes) == ["mrc", "tcp"]
    assert [label.get_text() for label in axes.get_xticklabels()] == sizes
    assert line(axes, "mrc")[1].tolist() == [10, 90]
    assert np.isnan(line(axes, "tcp")[1]).tolist() == [False, True]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("message size", "bus bandwidth (Gbit/s)")


def test_no_two_of_a_dozen_transports_look_the_same() -> None:
    looks = [tuple(map(str, style_of(place).values())) for place in range(12)]
    assert len(set(looks)) == 12


def test_a_run_without_packets_before_its_faults_has_no_picture_of_delivered_bytes(
    spray: dict[str, Any],
) -> None:
    """Without a rate before the fault there is nothing to compare with."""
    bare = deepcopy(spray)
    delivered = bare["transports"]["mrc"]["pictures"][0]["delivered"]
    del delivered["all"], delivered["broken"]
    assert set(SPRAYS) - set(packet_pictures.draw(bare)) == {"delivered-rate"}


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "shown"), [(5, False), (12, True)])
def test_the_delivered_bytes_have_an_interval_only_of_six_trials(
    evidence: Evidence, trials: int, shown: bool
) -> None:
    few = replace(evidence, faults=evidence.faults[:trials])
    found = measure(few)
    data = found.pictures["delivered"]
    assert data["trials"] == trials
    assert (
        any(high > mean for high, mean in zip(data["all"]["high"], data["all"]["mean"], strict=True)) == shown
    )
    trial = found.trials[data["trial"]]
    title = packet_pictures.draw_delivered_bytes(data, trial, "t").axes[0].get_title()
    assert title.endswith(f"mean of {trials} trials{' (95 %)' if shown else ''}")
