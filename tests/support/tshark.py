"""tshark with our dissector, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "tools" / "wireshark" / "mrc.lua"
SEPARATOR, AGGREGATOR = "\t", ","


def require_tshark() -> str:
    """The path of tshark. Skips the test where there is none, but fails it in CI, which installs one."""
    found = shutil.which("tshark")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("tshark is not on PATH in CI")
        pytest.skip("tshark is not on PATH: apt install tshark")
    return found


def tshark(*words: str) -> str:
    """What tshark with the dissector prints. A Lua error fails the test."""
    done = subprocess.run(
        [require_tshark(), *words, "-X", f"lua_script:{SCRIPT}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr
    assert "Lua Error:" not in done.stdout
    return done.stdout


def fields_of(capture: Path, names: Sequence[str], *options: str) -> list[dict[str, str]]:
    """For each packet the fields that it has; several values of one are joined by commas."""
    columns = [word for name in names for word in ("-e", name)]
    separators = ("-E", f"separator={SEPARATOR}", "-E", f"aggregator={AGGREGATOR}")
    text = tshark("-r", str(capture), "-T", "fields", *separators, *columns, *options)
    rows = [line.split(SEPARATOR) for line in text.splitlines()]
    assert all(len(row) == len(names) for row in rows)
    return [{n: v for n, v in zip(names, row, strict=True) if v} for row in rows]


def registered_fields(protocol: str) -> set[str]:
    """The names of all fields that the dissector gives a protocol, but for whole headers and experts."""
    lines = [line.split("\t") for line in tshark("-G", "fields").splitlines()]
    return {
        row[2]
        for row in lines
        if row[0] == "F" and row[4] == protocol and row[3] != "FT_BYTES" and ".expert." not in row[2]
    }
