"""`tools/walks.py`: all functions that it names exist, and it shows the files of a command."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tools.walks import WALKS

FUNCTIONS = sorted({one for parts in WALKS.values() for part in parts for one in part if one is not None})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_of_a_walk_exists(function: str) -> None:
    file, _, name = function.partition(":")
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        (found,) = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        body = found.body


def test_a_command_shows_the_files_of_its_walk() -> None:
    program = """
from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.responder import Responder
from mrclab.hosts.nic.device import Device
from mrclab.hosts.nic.ports import TransmitPort
for begin, end in ((Endpoint.post_write, TransmitPort.send), (Device._take_in, Responder.on_data)):
    for function in (begin, end):
        try:
            function(*[None] * (function.__code__.co_argcount))
        except Exception:
            pass
"""
    done = subprocess.run(
        [sys.executable, "tools/walks.py", "--files", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    counted, *files = done.stdout.splitlines()
    assert "a packet, from a write to its place in memory" in counted
    assert files[0].strip() == "hosts/mrc/endpoint.py"
    assert int(counted.split()[0]) == len(files) == len(set(files))
