"""A tap at a veth pair in a separate namespace records the frames on the wire and their times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.experiments.live.captures.recorder import Recorder
from mrclab.experiments.live.captures.tap import TapSource
from mrclab.experiments.measure.pcap import read_pcap
from mrclab.experiments.measure.recording import load_recording, measure_offset
from tests.support.frame_sender import SENDER
from tests.support.synthetic_run import Mrc

pytestmark = [pytest.mark.root, pytest.mark.parallel]

NAMESPACE = f"mrclab-tap-{os.getpid()}"


@pytest.fixture
def wire() -> Iterator[str]:
    """Make a namespace with a veth pair mrcA - mrcB."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", NAMESPACE)
    silence = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"  # so the kernel sends nothing
    ip("netns", "exec", NAMESPACE, "sh", "-c", silence)
    try:
        ip("-n", NAMESPACE, "link", "add", "mrcA", "type", "veth", "peer", "name", "mrcB")
        for name in "mrcA", "mrcB":
            ip("-n", NAMESPACE, "link", "set", name, "up")
        yield NAMESPACE
    finally:
        ip("netns", "delete", NAMESPACE)


def send(packets: list[Mrc]) -> list[tuple[int, int]]:
    """Send packets from mrcA. Return the monotonic times (ns) before and after each packet."""
    frames = [(bytes(12) + b"\x86\xdd" + packet.frame()).hex() for packet in packets]
    command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SENDER, *frames]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [(a, b) for a, b in json.loads(done.stdout)]


def test_what_is_sent_is_recorded_with_its_moment_at_both_ends(wire: str, tmp_path: Path) -> None:
    packets = [
        Mrc(psn=psn, ev=0x2_C000 + psn, rtx=psn == 3, payload=payload, outer=0xFCBB << 112)
        for psn, payload in enumerate((0, 8, 31, 32, 33, 64, 256, 900))
    ]
    offset_ns = measure_offset().offset_ns
    sources = {
        "sender": TapSource(wire, ("mrcA",), offset_ns),
        "receiver": TapSource(wire, ("mrcB",), offset_ns),
    }
    with Recorder(tmp_path, sources) as recorder:
        recorder.mark()
        times = send(packets)
        recorder.mark()
    recording = recorder.recording
    assert recording == load_recording(tmp_path / "recording.json")
    assert recording.drops == {"sender": 0, "receiver": 0}
    ends = [read_pcap(tmp_path / "captures" / f"{name}.pcap").rows for name in sources]
    for rows, outgoing in zip(ends, (True, False), strict=True):
        assert rows["outgoing"].tolist() == [outgoing] * len(packets)
        assert rows["psn"].tolist() == list(range(len(packets)))
        assert rows["ev"].tolist() == [packet.ev for packet in packets]
        assert rows["payload"].tolist() == [packet.payload for packet in packets]
        assert rows["rtx"].tolist() == [psn == 3 for psn in range(len(packets))]
        assert not rows["trimmed"].any()
    sent, arrived = (recording.clock.to_monotonic(rows["t_ns"]).tolist() for rows in ends)
    for (before, after), out, into in zip(times, sent, arrived, strict=True):
        assert before <= out <= into <= after  # exact: all use CLOCK_MONOTONIC
    assert recording.clock.error_ns(sent[0]) == 0


def test_a_trimmed_packet_is_known_as_one(wire: str, tmp_path: Path) -> None:
    tap = TapSource(wire, ("mrcA",), 0).start(tmp_path / "x.pcap")
    write = 0xCA
    send(
        [
            Mrc(opcode=write, psn=psn, stamped=stamped, outer=outer, trim=True)
            for psn, (stamped, outer) in enumerate(((False, 1), (True, 1), (False, None), (True, None)))
        ]
    )
    assert tap.stop().dropped == 0
    rows = read_pcap(tmp_path / "x.pcap").rows
    assert rows["psn"].tolist() == [0, 1, 2, 3]
    assert rows["payload"].tolist() == [0] * 4
    assert rows["trimmed"].all()


def test_what_is_not_ipv6_is_left_out_and_a_sack_is_whole(wire: str, tmp_path: Path) -> None:
    tap = TapSource(wire, ("mrcA",), 0).start(tmp_path / "x.pcap")
    sack = Mrc(opcode=0xDC, psn=9, outer=1, echo_ev=0x3C001, cack=9, ack_offset=-2)
    frames = [
        (bytes(12) + kind + body).hex()
        for kind, body in ((b"\x08\x00", bytes(60)), (b"\x86\xdd", sack.frame()))
    ]
    command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SENDER, *frames]
    subprocess.run(command, check=True, capture_output=True)
    counts = tap.stop()
    rows = read_pcap(tmp_path / "x.pcap").rows
    assert counts.captured == counts.received == len(rows) == 1
    assert (rows["echo_ev"][0], rows["echo_psn"][0]) == (0x3C001, 7)


def test_what_finds_the_ring_full_is_counted(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrclab.experiments.live.captures.tap.RING_BYTES", 4096)
    monkeypatch.setattr("mrclab.experiments.live.captures.tap.DRAIN_S", 3600)
    tap = TapSource(wire, ("mrcA",), 0).start(tmp_path / "x.pcap")
    send([Mrc(psn=psn, outer=1) for psn in range(50)])
    counts = tap.stop()
    assert counts.received == 50
    assert 0 < counts.dropped < 50
    rows = read_pcap(tmp_path / "x.pcap").rows
    assert rows["psn"].tolist() == list(range(counts.captured))


def test_a_ring_that_went_round_is_read_in_order(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrclab.experiments.live.captures.tap.RING_BYTES", 4096)
    tap = TapSource(wire, ("mrcA",), 0).start(tmp_path / "x.pcap")
    for start in range(0, 60, 15):
        send([Mrc(psn=psn, outer=1) for psn in range(start, start + 15)])
        tap.carry()
    assert tap.stop().dropped == 0
    assert read_pcap(tmp_path / "x.pcap").rows["psn"].tolist() == list(range(60))


def test_nothing_of_a_tap_is_left(wire: str, tmp_path: Path) -> None:
    def qdiscs() -> str:
        return subprocess.run(
            ["tc", "-n", NAMESPACE, "qdisc", "show"], check=True, capture_output=True, text=True
        ).stdout

    before = qdiscs()
    sources = {"a": TapSource(wire, ("mrcA",), 0), "b": TapSource(wire, ("mrcB",), 0)}
    with pytest.raises(KeyError), Recorder(tmp_path, sources):  # noqa: PT012
        assert qdiscs().count("clsact") == 2
        raise KeyError
    assert qdiscs() == before


def test_a_full_disk_is_told_by_stop_and_by_no_thread(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_threads: list[object] = []
    monkeypatch.setattr("threading.excepthook", from_threads.append)
    monkeypatch.setattr("mrclab.experiments.live.captures.tap.DRAIN_S", 0.001)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)], check=True)
    try:
        tap = TapSource(wire, ("mrcA",), 0).start(disk / "x.pcap")
        send([Mrc(psn=psn, outer=1) for psn in range(400)])
        with pytest.raises(OSError, match="No space left"):
            tap.stop()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert from_threads == []
