"""The commands that labs ask students to run, on real switches and in virtual time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mrclab.labs.catalogue import find, folder_of
from mrclab.labs.looking import frames_of, sender_of, way_of
from mrclab.labs.student import solution, start
from tests.support.command import Up

SEND = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
    s.bind((sys.argv[1], 0))
    s.send(bytes.fromhex(sys.argv[2]))
"""
RECEIVE = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86dd)) as s:
    s.bind((sys.argv[1], 0x86dd))
    s.settimeout(60)
    print("ready", flush=True)
    while True:
        frame = s.recv(2000)
        if frame.endswith(b"hello"):
            print(frame.hex(), flush=True)
            break
"""


@pytest.mark.root
def test_the_packet_of_lab_1_goes_its_way_on_real_switches(tiny: Up) -> None:
    frame = frames_of((folder_of(find("1")) / "solution" / "packet.pcap").read_bytes())[0]
    way = way_of(frame, *sender_of(frame))
    names = tiny.mrclab.names

    def command(host: str, program: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"{names.prefix}-{host}", sys.executable, "-c", program, *words]

    receiver = subprocess.Popen(command(way.end, RECEIVE, "h3-eth1"), stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        subprocess.run(command("h0", SEND, "h0-eth1", frame.hex()), check=True, timeout=60)
        arrived = bytes.fromhex(receiver.stdout.readline())
    finally:
        receiver.kill()
        receiver.wait()
    assert arrived[38:54] == way.steps[-1].destination.packed


@pytest.mark.slow
def test_the_example_of_lab_1_is_what_scapy_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scapy")
    readme = (folder_of(find("1")) / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    lines = "\n".join(line.strip() for line in code.splitlines())
    made = subprocess.run(
        [sys.executable, "-c", f"from scapy.all import *\n{lines}"], cwd=tmp_path, check=False, timeout=120
    )
    assert made.returncode == 0
    frame = frames_of((tmp_path / "packet.pcap").read_bytes())[0]
    assert way_of(frame, *sender_of(frame)).nodes == ("h0", "p0-t0-0", "p0-t1-0", "p0-t0-1", "h2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_cuts_of_lab_6_are_those_of_its_solution(here: Path) -> None:
    solution(find("6"), here / "mine")
    shutil.copy(here / "mine" / "cuts.json", here / "known.json")
    run("-m", "mrclab", "run", "mine/cuts.yaml", "--target", "sim", "--out", "run", "--set", "repetitions=1")
    run("mine/collect.py", "run")
    known = json.loads(Path("known.json").read_text())["trials"]
    found = json.loads(Path("cuts.json").read_text())["trials"]
    assert [t["transport"] for t in found] == ["mrc", "bfd", "bgp"]
    for trial in found:
        first = next(t for t in known if t["transport"] == trial["transport"])
        assert trial["where"] == first["where"]
        assert trial["detected_us"] == pytest.approx(first["detected_us"], rel=0.01)


@pytest.mark.slow
def test_the_steps_of_lab_7_are_those_of_its_solution(here: Path) -> None:
    start(find("7"), here / "mine")
    run("-m", "mrclab", "run", "mine/plane.yaml", "--target", "sim", "--out", "plane")
    run("mine/collect.py", "plane")
    with np.load("plane.npz") as data:
        comm = (data["reduced"] - data["computed"]).max(axis=0) / 1e6
        began = data["start"].min(axis=0)
        fault_ns = int(data["fault_ns"])
    assert np.median(comm[: np.searchsorted(began, fault_ns) - 1]) == pytest.approx(13.4, rel=0.05)
    assert np.median(comm[began > fault_ns]) == pytest.approx(17.3, rel=0.05)


@pytest.mark.slow
def test_the_programs_of_skeletons_run_and_show_that_something_is_missing(here: Path) -> None:
    for lab, program, shown in (
        ("4", "measure.py", "nan"),
        ("5", "story.py", "never delivered"),
        ("8", "compare.py", "room for"),
    ):
        start(find(lab), here / lab)
        assert shown in run(f"{lab}/{program}")
