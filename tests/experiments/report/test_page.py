"""The page of a run: whole, self-contained, escaped, and readable by a real browser where there is one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.measure.spread import ccdf, delivery_times_ns, reorder_extents
from experiments.report.examine import Evidence, examine
from experiments.report.page.fabric_svg import Marks, draw_fabric
from experiments.report.page.inline import inline_svg
from experiments.report.page.shared import command_of
from experiments.report.page.write import write_index, write_report
from experiments.report.plots import draw_all
from experiments.report.result import Run, result_of, save_result
from experiments.report.spread_plots import draw_spreads
from experiments.report.table import us
from experiments.run.system import describe_system
from experiments.spec.scenario import load_scenario
from mrclab.cli import main
from topologies import Fabric, load_fabric

_VOID = {"meta", "link", "br", "img", "hr"}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """Checks that tags close in order, and collects ids, references and the text."""

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
def evidence(told: Path, lab: Fabric) -> Evidence:
    return examine(told, lab, "h0", "h6")


@pytest.fixture(scope="module")
def run_directory(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    scenario = load_scenario("link-kill", trials=12)
    run = Run(scenario, "ebpf", "lab", evidence.trials, evidence.validity, describe_system(), 1)
    save_result(directory, result_of(run))
    draw_all(directory, evidence.trace, evidence.trials, evidence.sender_events, "x")
    draw_spreads(directory, evidence.trace, evidence.trials, "x")
    return directory


@pytest.fixture(scope="module")
def page_file(run_directory: Path) -> Path:
    return write_report(run_directory)[0]


def test_the_page_is_whole_and_needs_no_network(page_file: Path) -> None:
    text = page_file.read_text()
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for reference in page.references:
        assert reference.startswith(("#", "data:")), reference
        if reference.startswith("#"):
            assert reference[1:] in page.ids
    outside = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert {url.split("/")[2] for url in outside} <= {"www.w3.org"}  # names of namespaces, never fetched
    assert text.count("<svg") == 7
    assert "url(" not in text.split("</style>")[0]


def test_the_page_says_what_the_result_says(page_file: Path) -> None:
    result = json.loads((page_file.parent / "result.json").read_text())
    words = " ".join(" ".join(Page(page_file.read_text()).words).split())
    assert f"{us(result['summary']['whole_us']['p50'])} µs in the median" in words
    for trial in result["trials"]:
        assert trial["fault"]["where"] in words
    assert "mrclab run link-kill --topology lab --target ebpf --trials 12 --seed 1" in words


def test_what_comes_from_a_run_is_escaped(run_directory: Path, tmp_path: Path) -> None:
    result = json.loads((run_directory / "result.json").read_text())
    result["integrity"] = "<script>alert(1)</script>"
    (tmp_path / "result.json").write_text(json.dumps(result))
    text = write_report(tmp_path)[0].read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_run_without_pictures_or_times_has_a_page(run_directory: Path, tmp_path: Path) -> None:
    result = json.loads((run_directory / "result.json").read_text())
    for trial in result["trials"]:
        trial |= {"whole_us": None, "detect_us": None, "first_hit_us": None}
    for row in result["summary"].values():
        row |= {"n": 0} | dict.fromkeys(("min", "p50", "p90", "p99", "max", "ci95_p50"))
    (tmp_path / "result.json").write_text(json.dumps(result))
    text = write_report(tmp_path)[0].read_text()
    assert "no recovery to time" in text
    assert text.count("<svg") == 1


def test_trials_as_csv(page_file: Path) -> None:
    lines = (page_file.parent / "trials.csv").read_text().splitlines()
    assert len(lines) == 13
    head = lines[0].split(",")
    assert {"trial", "fault.where", "whole_us", "app_gap_us.longest"} <= set(head)


def test_the_index_leads_to_the_pages(run_directory: Path, tmp_path: Path) -> None:
    index = write_index([run_directory], tmp_path / "index.html")
    page = Page(index.read_text())
    links = [reference for reference in page.references if not reference.startswith("data:")]
    assert [(tmp_path / link).resolve() for link in links] == [(run_directory / "report.html").resolve()]


def test_the_command(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_directory)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(run_directory / "nothing")]) == 2
    assert "no result in" in capsys.readouterr().err


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
    extents = reorder_extents(evidence.trace)
    assert len(extents) == int(evidence.trace.received.first.sum())
    assert extents.min() == 0
    assert extents.max() > 0  # a packet that was sent again comes after others
    sent, took = delivery_times_ns(evidence.trace)
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
    assert (dark > 0).mean() > 0.3  # text and pictures all the way down, not a blank page
