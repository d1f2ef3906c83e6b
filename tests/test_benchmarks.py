"""`make bench`: its list has all benchmark files, and a benchmark that cannot run ends with one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import HERE, SHORT
from benchmarks.kit.bare_switch import MACS, NEXT, OWN, PROGRAMS, hand_written, namespace
from mrclab.linux import bpf
from mrclab.linux.traffic_control import ifindex_of
from mrclab.switches.p4_model import Interpreter, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import ipv6_frame, sid

ROOT = Path(__file__).resolve().parents[1]
REDIRECT, SHOT = 7, 2


def test_every_benchmark_is_in_the_list() -> None:
    assert sorted(SHORT) == sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("__"))


def test_a_wrong_name_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "speed_of_light"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no benchmark speed_of_light" in done.stderr


LOAD_ALL = """
import runpy, sys
paths = list(sys.path)
for file in sys.argv[1:]:
    for name in [name for name in sys.modules if name.split(".")[0] in ("benchmarks", "tests")]:
        del sys.modules[name]
    sys.path[:] = paths
    try:
        runpy.run_path(file, run_name="loaded")
    except ImportError as error:
        print(file, error)
"""


def test_every_benchmark_can_be_run_as_a_file(tmp_path: Path) -> None:
    """Each benchmark finds the modules that it imports, from any working directory."""
    files = sorted(str(file) for file in HERE.glob("*.py") if not file.stem.startswith("__"))
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, *files], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_versions_that_a_clone_lacks_are_named(tmp_path: Path) -> None:
    script = ROOT / "benchmarks/switch_versions.py"
    done = subprocess.run(
        [sys.executable, script, "0badc0de"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def consumed(frame: bytes) -> bytes:
    """Return the forwarded frame (RFC 9800, 4.1.1): first uSID removed, hop limit less 1, new MACs."""
    address = frame[38:42] + frame[44:54] + bytes(2)
    macs = b"".join(mac.to_bytes(6, "big") for mac in MACS)
    return macs + frame[12:21] + bytes([frame[21] - 1]) + frame[22:38] + address + frame[54:]


@pytest.mark.root
def test_what_the_switch_is_compared_with_does_the_same() -> None:
    goes_on = ipv6_frame(sid(OWN, NEXT, 3), hop_limit=2)
    lost = [
        ipv6_frame(sid(OWN, NEXT), hop_limit=1),
        ipv6_frame(sid(NEXT, OWN)),
        ipv6_frame(sid(OWN)),
        ipv6_frame(sid(OWN, 9)),
        b"\x02" * 12 + b"\x08\x00" + bytes(60),
    ]
    with namespace() as ns, hand_written(ns, 2) as fd:
        index = ns.run(lambda: ifindex_of("s1"))

        def run(frame: bytes) -> tuple[int, bytes]:
            return ns.run(lambda: bpf.run_once(fd, frame, index)[:2])

        assert run(goes_on) == (REDIRECT, consumed(goes_on))
        assert [run(frame)[0] for frame in lost] == [SHOT] * len(lost)
    model = Interpreter(read_program((PROGRAMS / "un.json").read_bytes()))
    model.rules["I.my_sid"] = [Rule((Prefix(sid(OWN), 48),), "I.un")]
    model.rules["I.next_hop"] = [Rule((Prefix(sid(NEXT), 48),), "I.forward", (2, MACS[1], MACS[0]))]
    assert model.run(1, goes_on) == [(2, consumed(goes_on))]
    assert [model.run(1, frame) for frame in lost] == [[]] * len(lost)
