"""The labs' pages show the present output of the solutions, and all their commands exist."""

from __future__ import annotations

import re
import shlex

import pytest

from mrclab.cli import parser
from mrclab.labs.catalogue import Lab, all_labs, folder_of
from mrclab.labs.expected import Shown, shown

LABS = all_labs()
BLOCKS = [block for lab in LABS for block in shown(lab)]
_PLACEHOLDER = re.compile(r"\.\.\.|\bN\b|--out$|--program$|--set$")


def _slow(block: Shown) -> bool:
    return any(command.startswith("mrclab run") for command in block.commands) or block.lab.number == 4


def _commands(lab: Lab) -> list[str]:
    text = (folder_of(lab) / "README.md").read_text(encoding="utf-8")
    inline = re.findall(r"`(mrclab [^`]+)`", text)
    fenced = "".join(re.findall(r"^ *```\n(.*?)^ *```", text, re.S | re.M))
    return inline + [line.strip() for line in fenced.splitlines() if re.match(r" *mrclab ", line)]


def test_every_lab_shows_what_to_expect() -> None:
    assert {block.lab.number for block in BLOCKS} == {lab.number for lab in LABS}


@pytest.mark.parametrize(
    "block", [pytest.param(b, marks=pytest.mark.slow if _slow(b) else (), id=str(b)) for b in BLOCKS]
)
def test_what_a_page_shows_is_what_comes_of_it(block: Shown) -> None:
    assert block.text == block.made()


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_every_command_of_a_lab_is_one_that_we_have(lab: Lab) -> None:
    commands = _commands(lab)
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        if len(words) > 1 and not _PLACEHOLDER.search(" ".join(words)):
            parser().parse_args(words)
