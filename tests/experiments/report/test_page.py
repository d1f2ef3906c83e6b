"""The page of a result, for every scenario: it is complete, needs no network, and agrees with the result."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrclab.cli import main
from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.pictures import ccdf, delivery_times_ns, reorder_extents
from mrclab.experiments.measure.repetition import _traces
from mrclab.experiments.report.page.fabric_svg import CYCLE_S, Marks, draw_fabric, draw_replay
from mrclab.experiments.report.page.render import inline_svg
from mrclab.experiments.report.page.shared import command_of
from mrclab.experiments.report.pictures import draw_all
from mrclab.experiments.report.write import write_all, write_index
from mrclab.experiments.result.file import save_result
from mrclab.experiments.result.numbers import us
from mrclab.topologies import load_fabric

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
OLD = sorted(DATA.glob("*-1.json"))
_VOID = {"meta", "link", "br", "img", "hr", "input"}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """A parser that checks that tags close in order, and collects ids, references and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            elif name in ("href", "src", "xlink:href") and value:
                self.references.append(value)


@pytest.fixture(scope="module")
def page_file(spray_directory: Path) -> Path:
    return write_all(spray_directory)[0]


def words_of_page(path: Path) -> str:
    return " ".join(" ".join(Page(path.read_text()).words).split())


def check_whole(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for reference in page.references:
        assert reference.startswith(("#", "data:")), reference
        if reference.startswith("#"):
            assert reference[1:] in page.ids
    outside = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert {url.split("/")[2] for url in outside} <= {"www.w3.org"}  # XML namespaces, never fetched
    assert "url(" not in text.split("</style>")[0]


def test_the_page_is_whole_and_needs_no_network(page_file: Path) -> None:
    check_whole(page_file.read_text())
    assert page_file.read_text().count("<svg") >= 8


def test_the_page_says_what_the_result_says(page_file: Path, spray: dict[str, Any]) -> None:
    words = words_of_page(page_file)
    assert f"{us(spray['summary']['recovered_us']['p50'])} µs in the median" in words
    for trial in spray["trials"]:
        assert trial["fault"]["where"] in words
    assert "mrclab run link-kill --topology lab --target ebpf --seed 1" in words
    assert "9 Mbit/s" in words


def test_every_picture_that_the_data_allow_is_drawn(spray: dict[str, Any], tmp_path: Path) -> None:
    names = draw_all(tmp_path, spray)
    wanted = {"recovery", "delivered-rate", "ev-activity", "times-cdf", "reordering", "delivery-times"}
    assert wanted | {"delivered"} <= set(names)
    for name in names:
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_two_transports_share_the_page(both: dict[str, Any], tmp_path: Path) -> None:
    save_result(tmp_path, both)
    page = write_all(tmp_path)[0]
    check_whole(page.read_text())
    words = words_of_page(page)
    assert "a claim" in words
    assert "not shown" in words
    assert "nothing was captured" in words  # the page names the rule for runs without captures
    assert "not felt" in words


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_old_results_have_a_page(path: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(path.read_text())
    page, _ = write_all(tmp_path)
    check_whole(page.read_text())
    assert "was written in form" in words_of_page(page)


def test_what_comes_from_a_run_is_escaped(spray: dict[str, Any], tmp_path: Path) -> None:
    save_result(tmp_path, spray | {"integrity": "<script>alert(1)</script>"})
    text = write_all(tmp_path)[0].read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_run_without_faults_and_series_has_a_page(spray: dict[str, Any], tmp_path: Path) -> None:
    result = deepcopy(spray) | {"trials": []}
    result["transports"]["mrc"] |= {"summary": {}, "series": [], "faults": [], "pictures": [], "samples": []}
    save_result(tmp_path, result)
    check_whole(write_all(tmp_path)[0].read_text())


def test_trials_as_csv(page_file: Path, spray: dict[str, Any]) -> None:
    with (page_file.parent / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["fault.where"] for row in rows] == [trial["fault"]["where"] for trial in spray["trials"]]
    assert {"recovered_us", "transport", "felt", "rule"} <= set(rows[0])


def test_the_index_leads_to_the_pages(spray_directory: Path, both: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    save_result(tmp_path / "b", both)
    write_all(spray_directory)
    write_all(tmp_path / "b")
    index = write_index([spray_directory, tmp_path / "b"], tmp_path / "index.html")
    links = Page(index.read_text()).references
    assert "b/report.html" in links
    assert len([link for link in links if link.endswith("report.html")]) == 2


def test_the_command(spray_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(spray_directory)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(spray_directory / "nothing")]) == 2
    assert "no result in" in capsys.readouterr().err


def test_one_unfinished_directory_does_not_spoil_the_others(
    spray_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "died").mkdir()
    index = tmp_path / "index.html"
    assert main(["report", str(tmp_path / "died"), str(spray_directory), "--index", str(index)]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("mrclab: left out: no result in")
    assert said.err.count("\n") == 1
    assert index.read_text().count("report.html") == 1
    assert main(["report", str(tmp_path / "died"), str(tmp_path), "--index", str(index)]) == 2


@pytest.mark.parametrize("name", ["tiny", "lab", "wide"])
def test_the_fabric_is_drawn_with_what_was_broken(name: str) -> None:
    fabric = load_fabric(name)
    link = next(
        link.name for link in fabric.links if link.kind == "fabric" and link.plane == fabric.planes - 1
    )
    ends = (fabric.hosts[0].name, fabric.hosts[-1].name)
    svg = draw_fabric(fabric, Marks({link: 2}, link, ends, fabric.paths(*ends)))
    assert Page(svg).open == []
    assert f"{link}, broken 2 times" in svg
    assert len(svg) < 400_000


@pytest.mark.parametrize("name", ["tiny", "lab", "wide"])
def test_a_recovery_moves_over_the_fabric(name: str) -> None:
    fabric = load_fabric(name)
    source, target = fabric.far_ends()
    first, second = fabric.paths(source, target)[:2]
    data = {
        "from_us": -100.0,
        "to_us": 900.0,
        "ends": [source, target],
        "flights": [
            [0.0, first.ev, None, 0],
            [1.0, second.ev, 31.0, 0],
            [500.0, second.ev, 540.0, 1],
            [-90.0, 12345678, 3.0, 0],
        ],
    }
    found = draw_replay(fabric, data, first.links[1])
    assert found is not None
    svg, slower = found
    assert Page(svg).open == []
    assert slower == pytest.approx(CYCLE_S * 1e6 / 1000)
    assert [svg.count(f'class="flight {look}"') for look in ("lost", "packet", "again")] == [1, 1, 1]
    ways = re.findall(r'path="M([^"]+)"', svg)
    assert sorted(way.count("L") for way in ways) == [2, 4, 4], "a lost packet ends beyond the broken link"
    for times in re.findall(r'keyTimes="([^"]+)"', svg):
        shares = [float(share) for share in times.split(";")]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1] <= 1) == (0, True)
    assert draw_replay(fabric, {**data, "ends": ["h0", "h99"]}, first.links[1]) is None


def test_ids_of_pictures_do_not_meet() -> None:
    svg = (
        '<?xml?><svg width="9pt" height="9pt"><g id="a"/><use xlink:href="#a"/><g clip-path="url(#a)"/></svg>'
    )
    one = inline_svg(svg, "one", 'a "picture"')
    assert 'id="one-a"' in one
    assert one.count("one-a") == 3
    assert "&quot;picture&quot;" in one
    assert "9pt" not in one
    with pytest.raises(ValueError, match="no <svg>"):
        inline_svg("x", "one", "")


def test_reordering_and_delivery(evidence: Evidence) -> None:
    ((trace,), _) = _traces(evidence)
    extents = reorder_extents(trace)
    assert len(extents) == int(trace.received.first.sum())
    assert extents.min() == 0
    assert extents.max() > 0  # a retransmitted packet is drawn to the right of other packets
    sent, took = delivery_times_ns(trace)
    assert len(sent) == len(took)
    assert took.min() > 0
    x, share = ccdf(np.array([3, 1, 1, 2]))
    assert (x.tolist(), share.tolist()) == ([1, 2, 3], [1, 0.5, 0.25])


def test_the_recorded_command_is_quoted() -> None:
    result: dict[str, Any] = {"command": ["mrclab", "run", "x", "--set", "workload.rate=5 Mbit/s"]}
    assert command_of(result) == "mrclab run x --set 'workload.rate=5 Mbit/s'"


def test_a_browser_shows_the_page(page_file: Path, tmp_path: Path) -> None:
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium here to look at the page with")
    shot = tmp_path / "page.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += ["--window-size=1100,3000", f"--screenshot={shot}", page_file.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    from matplotlib.image import imread

    pixels = imread(shot)
    dark = (pixels[..., :3].mean(axis=2) < 0.5).mean(axis=1)
    assert (dark > 0).mean() > 0.3  # text and pictures down to the end, and no blank page
