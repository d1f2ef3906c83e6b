"""Variants of labs: each student has other values, and a hand-in with another student's values fails."""

from __future__ import annotations

import csv
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from mrclab import cli
from mrclab.labs import student
from mrclab.labs.catalogue import Lab, Outcome, find, folder_of
from mrclab.labs.grading import handins
from mrclab.labs.grading.handins import HandIn, Person
from mrclab.labs.judge import judge
from mrclab.labs.looking import way_of
from mrclab.labs.student import USUAL, Variant, followed_route, packet_route, variant_in, wanted_nics
from mrclab.linux.errors import InputError
from mrclab.scale.fabric import Design
from mrclab.scale.parts import Parts
from mrclab.topologies import load_fabric

LOOK, CUTS, STEPS, DESIGN = (find(number) for number in "1678")
STUDENTS = [Variant(f"s{number}") for number in range(200)]


def failing(lab: Lab, folder: Path, number: str | None = None) -> list[str]:
    outcomes = judge(folder_of(lab) / "check.py", folder, lab.spec.check_limit_s, number=number)
    return [outcome.check for outcome in outcomes if not outcome.passed]


def test_without_a_number_the_values_are_those_of_the_page() -> None:
    assert str(followed_route(USUAL)) == "from h1 to h3 in plane 1, over T1 number 1"
    assert str(packet_route(USUAL)) == "from h0 to h3 in plane 1, over T1 number 1"
    assert (wanted_nics(USUAL), USUAL.seed("cuts", 4)) == (50_000, 4)


def test_values_are_spread_and_stay() -> None:
    assert len({packet_route(one) for one in STUDENTS}) == 14
    assert len({wanted_nics(one) for one in STUDENTS}) > 35
    assert len({one.seed("cuts", 4) for one in STUDENTS}) > 195
    assert wanted_nics(Variant("ada")) == wanted_nics(Variant("ada"))
    for one in STUDENTS:
        assert packet_route(one) != followed_route(one)
        assert packet_route(one).path().nodes == packet_route(one).nodes


@pytest.mark.parametrize("number", ["", " ", "a b", "../x", "x" * 65, "-x", "_x", "a\nb"])
def test_a_number_that_is_none_is_refused_in_a_line(
    number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lab", "start", "8", str(tmp_path / "mine"), f"--student={number}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "mine").exists()


def test_the_skeleton_of_a_variant_has_its_values_everywhere(tmp_path: Path) -> None:
    for one in STUDENTS[:40]:
        folder = tmp_path / one.student
        student.start(LOOK, folder, one)
        route = followed_route(one)
        text = (folder / "answers.yaml").read_text()
        assert f"A packet {route}" in text
        addresses = [key for key in yaml.safe_load(text) if key.startswith(("sent", "behind"))]
        nodes = [node.replace("-", "_") for node in route.nodes]
        assert addresses == [f"sent_by_{nodes[0]}", *(f"behind_{node}" for node in nodes[1:-1])]
        assert all(f"as {node} sends it on" in text for node in route.nodes[1:-2])
        assert f"as {route.dst} receives it" in text
        assert str(packet_route(one)) in (folder / "yours.md").read_text()
        assert variant_in(folder) == one
    student.start(STEPS, tmp_path / "steps", STUDENTS[0])
    scenario = yaml.safe_load((tmp_path / "steps" / "port.yaml").read_text())
    assert scenario["faults"][0]["where"] == student.dead_port(STUDENTS[0])
    assert scenario["seed"] == STUDENTS[0].seed("port", 2)


def solved_look(folder: Path, one: Variant) -> None:
    """Write a solution of lab 1 for a variant, from the fabric's own paths."""
    student.start(LOOK, folder, one)
    solution = folder_of(LOOK) / "solution"
    shutil.copy(solution / "answers.md", folder)
    shape = dict(list(yaml.safe_load((solution / "answers.yaml").read_text()).items())[:7])
    route = followed_route(one)
    frame = (
        bytes(12)
        + b"\x86\xdd\x60"
        + bytes(6)
        + b"\x40"
        + bytes(16)
        + route.path().outer_dst.packed
        + bytes(8)
    )
    nodes = [node.replace("-", "_") for node in route.nodes]
    keys = [f"sent_by_{nodes[0]}", *(f"behind_{node}" for node in nodes[1:-1])]
    steps = way_of(frame, route.src, route.plane).steps
    shape |= {key: str(step.destination) for key, step in zip(keys, steps, strict=True)}
    (folder / "answers.yaml").write_text(yaml.safe_dump(shape))
    route = packet_route(one)
    port = load_fabric("tiny").host(route.src).ports[route.plane]
    frame = port.t0_mac + port.mac + b"\x86\xdd\x60" + bytes(6) + b"\x40" + port.address.packed
    frame += route.path().outer_dst.packed + bytes(8)
    head = bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")
    record = bytes(8) + len(frame).to_bytes(4, "little") * 2
    (folder / "packet.pcap").write_bytes(head + record + frame)


def test_the_right_solution_of_a_variant_passes_and_only_for_its_student(tmp_path: Path) -> None:
    ada, bob = next((a, b) for a, b in pairwise(STUDENTS) if packet_route(a) != packet_route(b))
    solved_look(tmp_path / "ada", ada)
    assert failing(LOOK, tmp_path / "ada") == []
    assert "packet.pcap goes over the path that was asked for" in failing(LOOK, tmp_path / "ada", bob.student)


def solved_design(folder: Path, one: Variant) -> None:
    """Write a solution of lab 8 for a variant."""
    student.start(DESIGN, folder, one)
    for name in ("fabric.py", "answers.md"):
        shutil.copy(folder_of(DESIGN) / "solution" / name, folder)
    nics = wanted_nics(one)
    built = Design(2, 8, Parts()).built(nics)
    values = {
        "tiers": 2,
        "planes": 8,
        "switches": built.switches,
        "optical_modules": built.modules,
        "power_mw": built.power_w / 1e6,
        "cost_of_a_nics_share": built.cost / nics,
    }
    (folder / "choice.yaml").write_text(yaml.safe_dump(values))


def test_grading_by_the_roster_finds_a_hand_in_of_somebody_else(tmp_path: Path) -> None:
    ada, bob = next((a, b) for a, b in pairwise(STUDENTS) if abs(wanted_nics(a) - wanted_nics(b)) > 5_000)
    solved_design(tmp_path / "work", ada)
    for name in ("ada", "bob"):
        (tmp_path / "all").mkdir(exist_ok=True)
        student.pack(
            DESIGN, tmp_path / "work", tmp_path / "all" / f"{name}.zip", [Outcome("a", True)], "", "1"
        )
    roster = tmp_path / "roster.csv"
    roster.write_text(f"Name,Student\nada,{ada.student.upper()}\nbob,{bob.student}\n")
    table = tmp_path / "marks.csv"
    words = ["lab", "grade", "8", str(tmp_path / "all"), "--csv", str(table), "--unconfined"]
    assert cli.main([*words, "--roster", str(roster), "--variants"]) == 0
    marks = {row["name"]: row for row in csv.DictReader(table.open())}
    title = "the numbers of the choice are those of the model"
    assert (marks["ada"][title], marks["bob"][title]) == ("1", "0")
    assert (marks["ada"]["student"], marks["bob"]["student"]) == (ada.student, bob.student)
    assert cli.main(words) == 0
    marks = {row["name"]: row for row in csv.DictReader(table.open())}
    assert (marks["bob"][title], marks["bob"]["student"]) == ("1", ada.student)


@pytest.mark.parametrize("number", ["Zoë", "Zoe\u0308", "zoë"])
def test_a_students_number_may_be_a_name_in_any_script(number: str, tmp_path: Path) -> None:
    assert student.student_number(number) == "zoë"
    assert student.student_number("李雷") == "李雷"
    (tmp_path / student.MARKER).write_text(f"1\n{number}\n", encoding="utf-8")
    assert variant_in(tmp_path) == Variant("zoë")


def test_variants_need_a_roster_with_everybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all" / "ada").mkdir(parents=True)
    assert cli.main(["lab", "grade", "8", str(tmp_path / "all"), "--variants"]) == 2
    assert "--roster" in capsys.readouterr().err
    with pytest.raises(InputError, match="no student's number of ada"):
        handins.with_students([Person("bob", student="b")], [HandIn(Person("ada"), tmp_path)])


@pytest.mark.slow
def test_the_measurements_of_a_variant_are_made_again(tmp_path: Path) -> None:
    one = Variant("ada")
    student.start(STEPS, tmp_path / "mine", one)
    for name in ("steps.py", "answers.md"):
        shutil.copy(folder_of(STEPS) / "solution" / name, tmp_path / "mine")
    from mrclab.labs.measuring import all_reduce_ms

    before, plane = all_reduce_ms((tmp_path / "mine" / "plane.yaml").read_text(), "plane.yaml", 300)
    _, port = all_reduce_ms((tmp_path / "mine" / "port.yaml").read_text(), "port.yaml", 300)
    values = {
        "all_reduce_before": before,
        "all_reduce_with_three_planes": plane,
        "all_reduce_with_a_port_less": port,
        "step_factor": (10 + plane) / (10 + before),
    }
    (tmp_path / "mine" / "measured.yaml").write_text(yaml.safe_dump(values))
    assert failing(STEPS, tmp_path / "mine") == ["the questions are answered"]  # with the page's numbers
    page = tmp_path / "mine" / "answers.md"
    mine = f"Measured: {before:.1f}, {plane:.1f} and {port:.1f} ms."
    page.write_text(page.read_text().replace("The all-reduce takes", f"{mine} The all-reduce takes"))
    assert failing(STEPS, tmp_path / "mine") == []
    (tmp_path / "mine" / "measured.yaml").write_text(
        yaml.safe_dump(values | {"all_reduce_before": before * 1.2})
    )
    assert "what was measured" in failing(STEPS, tmp_path / "mine")


def test_another_seed_than_ones_own_is_refused(tmp_path: Path) -> None:
    student.solution(CUTS, tmp_path / "mine")
    assert "all meet the same cuts, and these last long enough" in failing(CUTS, tmp_path / "mine", "ada")
