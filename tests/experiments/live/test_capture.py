from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.experiments.live.captures.recorder import (
    Capture,
    CaptureError,
    Recorder,
    TcpdumpSource,
    parse_counts,
    tcpdump_command,
)
from mrclab.experiments.measure.pcap import read_pcap
from mrclab.experiments.measure.recording import CaptureCounts, ClockMap, load_recording
from tests.support.frame_sender import SENDER
from tests.support.synthetic_run import Mrc

pytestmark = pytest.mark.parallel

NAMESPACE = f"mrclab-test-{os.getpid()}"


@pytest.fixture
def namespace() -> Iterator[tuple[str, ...]]:
    """Make a namespace with a veth pair mrcA - mrcB. Yield the prefix of a command that runs in it."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", NAMESPACE)
    try:
        ip("-n", NAMESPACE, "link", "add", "mrcA", "type", "veth", "peer", "name", "mrcB")
        for name in "mrcA", "mrcB":
            ip("-n", NAMESPACE, "link", "set", name, "up")
        yield ("ip", "netns", "exec", NAMESPACE)
    finally:
        ip("netns", "delete", NAMESPACE)


def send(prefix: tuple[str, ...], packets: list[Mrc]) -> list[tuple[int, int]]:
    """Send packets from mrcA. Return the monotonic times (ns) before and after each packet."""
    frames = [(bytes(12) + b"\x86\xdd" + packet.frame()).hex() for packet in packets]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", SENDER, *frames], check=True, capture_output=True, text=True
    )
    return [(a, b) for a, b in json.loads(done.stdout)]


@pytest.mark.root
def test_what_is_sent_is_recorded_with_its_moment(namespace: tuple[str, ...], tmp_path: Path) -> None:
    packets = [
        Mrc(psn=psn, ev=0x2_C000 + psn, rtx=psn == 3, payload=900, outer=0xFCBB << 112) for psn in range(20)
    ]
    with Recorder(
        tmp_path / "run", {"sender": TcpdumpSource(prefix=namespace)}, {"me": os.getpid()}
    ) as recorder:
        recorder.mark()
        times = send(namespace, packets)
        recorder.mark()
    recording = recorder.recording
    assert recording.drops == {"sender": 0}
    assert recording == load_recording(tmp_path / "run/recording.json")
    assert len(recording.loads) == 1
    assert recording.offsets[0].error_ns < 100_000

    rows = read_pcap(tmp_path / "run/captures/sender.pcap").rows
    out, into = rows[rows["outgoing"]], rows[~rows["outgoing"]]
    assert out["psn"].tolist() == into["psn"].tolist() == list(range(20))  # mrcA sent, mrcB received
    assert out["ev"].tolist() == [packet.ev for packet in packets]
    assert np_unique(out["ifindex"]) != np_unique(into["ifindex"])
    assert set(out["payload"].tolist()) == {900}
    assert out["rtx"].tolist() == [psn == 3 for psn in range(20)]
    clock = ClockMap.of(recording.offsets)
    stamped = clock.to_monotonic(out["t_ns"])
    for stamp, (before, after) in zip(stamped.tolist(), times, strict=True):
        slack = clock.error_ns(stamp)
        assert before - slack <= stamp <= after + slack


def np_unique(values: object) -> set[int]:
    return set(values.tolist())  # type: ignore[attr-defined]


@pytest.mark.root
def test_the_filter_leaves_out_what_is_not_ipv6(namespace: tuple[str, ...], tmp_path: Path) -> None:
    capture = Capture.start(tmp_path / "x.pcap", prefix=namespace, interface="mrcA")
    frames = [(bytes(12) + b"\x08\x00" + bytes(60)).hex()]
    subprocess.run([*namespace, sys.executable, "-c", SENDER, *frames], check=True, capture_output=True)
    send(namespace, [Mrc(psn=7, outer=1)])
    counts = capture.stop()
    packets = read_pcap(tmp_path / "x.pcap")
    assert packets.records == counts.captured
    assert packets.rows["psn"].tolist() == [7]


@pytest.mark.root
def test_an_exception_ends_the_captures(namespace: tuple[str, ...], tmp_path: Path) -> None:
    pids = []
    sources = {"a": TcpdumpSource(namespace), "b": TcpdumpSource(namespace)}
    with pytest.raises(KeyError), Recorder(tmp_path, sources) as recorder:  # noqa: PT012
        pids = [capture.pid for capture in recorder._captures.values()]
        raise KeyError
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="not over"):
        _ = recorder.recording


@pytest.mark.root
def test_tcpdump_s_own_complaint_is_passed_on(namespace: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"tcpdump ended at once: .*syntax error"):
        Capture.start(tmp_path / "x.pcap", prefix=namespace, expression="ip6 and and")
    with pytest.raises(CaptureError, match=r"tcpdump ended at once: .*nosuch"):
        Capture.start(tmp_path / "x.pcap", prefix=namespace, interface="nosuch")


@pytest.mark.root
def test_a_capture_that_somebody_killed_is_no_capture(namespace: tuple[str, ...], tmp_path: Path) -> None:
    capture = Capture.start(tmp_path / "x.pcap", prefix=namespace)
    os.kill(capture.pid, signal.SIGKILL)
    with pytest.raises(CaptureError, match="no counts"):
        capture.stop()


def test_a_command_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot start /no/such/prefix: No such file"):
        Capture.start(tmp_path / "x.pcap", prefix=["/no/such/prefix"])


def test_a_spawn_without_a_pipe_is_refused(tmp_path: Path) -> None:
    spawned = []

    def spawn(command: object) -> subprocess.Popen[bytes]:
        spawned.append(command)
        return subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)

    with pytest.raises(CaptureError, match="without a pipe"):
        Capture.start(tmp_path / "x.pcap", spawn=spawn)
    assert spawned == [tcpdump_command(tmp_path / "x.pcap")]


def test_counts_are_read_from_tcpdump_s_last_words() -> None:
    text = (
        "listening on any\n12 packets captured\n15 packets received by filter\n1 packet dropped by kernel\n"
    )
    assert parse_counts(text) == CaptureCounts(12, 15, 1)
    assert parse_counts(text + "2 packets dropped by interface\n").dropped == 3
    with pytest.raises(CaptureError, match="no counts: it said nothing"):
        parse_counts("")


def test_the_command_asks_for_nanoseconds_and_whole_headers(tmp_path: Path) -> None:
    command = tcpdump_command(tmp_path / "x.pcap")
    assert command[command.index("--time-stamp-precision") + 1] == "nano"
    assert int(command[command.index("--snapshot-length") + 1]) >= 20 + 40 + 40 + 8 + 12 + 4 + 4 + 16 + 40
