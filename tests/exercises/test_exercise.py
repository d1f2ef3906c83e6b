"""A made-up exercise is brought up, and its hosts ping each other over routers and a tunnel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrclab.exercises.network import Exercise, Plan, running
from mrclab.exercises.topology import read_topology
from mrclab.testbed.names import PREFIX_VARIABLE, Names
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import DATA, ROOT

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
TUNNEL = Path(__file__).parent / "tunnel"


def namespaces() -> set[str]:
    return set(os.listdir("/run/netns"))


@pytest.fixture(scope="module", params=TARGETS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exercise]:
    plan = Plan.read(TUNNEL, read_topology(TUNNEL / "topology.json"), request.param, DATA)
    names = Names.of_prefix(f"ex{os.urandom(3).hex()}")
    with running(plan, tmp_path_factory.mktemp("logs"), names) as exercise:
        yield exercise
    assert not [n for n in namespaces() if n.startswith(names.prefix)]
    assert not names.state_dir.exists() or not (names.state_dir / "state.json").exists()


ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5000))
print("ready", flush=True)
for _ in range(3):
    s.sendto(*s.recvfrom(2000))
"""
ASK = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
for i in range(3):
    s.sendto(b"hello", ("10.0.2.2", 5000))
    data, ancillary, _, _ = s.recvmsg(2000, 100)
    print(data.decode(), ancillary[0][2][0])
"""
BLAST = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(50):
    s.sendto(bytes(1400), ("10.0.3.3", 5000))
"""
# Uses the kernel's arrival times, because a busy machine may deliver the first frames late.
TIMED = """
import socket, struct
SO_TIMESTAMPNS = 35
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
s.bind(("", 5000))
s.settimeout(10)
print("ready", flush=True)
def arrival():
    (_, _, stamp), = s.recvmsg(2000, 64)[1]
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return seconds + nanoseconds / 1e9
times = [arrival() for _ in range(50)]
print(times[-1] - times[0])
"""


def python(script: str, directory: Path) -> str:
    path = directory / f"{abs(hash(script))}.py"
    path.write_text(script)
    return f"exec {sys.executable} {path}"


@contextmanager
def listening(up: Exercise, host: str, script: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    with up.start(host, python(script, directory), stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def test_hosts_reach_each_other_through_the_tunnel(up: Exercise, tmp_path: Path) -> None:
    assert up.warnings == []
    with listening(up, "h2", ECHO, tmp_path):
        done = up.run("h1", python(ASK, tmp_path), 30)
    # In the tunnel no router decrements the TTL. On the way back two routers do.
    assert done.stdout == "hello 62\n" * 3


def test_the_first_switch_puts_it_into_the_tunnel(up: Exercise, tmp_path: Path) -> None:
    command = "exec tcpdump -i s1-eth2 -c 1 -nnxl ether proto 0x1212"
    with (
        listening(up, "h2", ECHO, tmp_path),
        up.start("s1", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as dump,
    ):
        try:
            assert dump.stdout is not None
            while "listening" not in dump.stdout.readline():
                pass
            up.run("h1", python(ASK, tmp_path), 30)
            said, _ = dump.communicate(timeout=120)
        finally:
            dump.kill()
    assert "0x0000:  0800 0022 4500" in said


def test_a_link_keeps_to_its_rate(up: Exercise, tmp_path: Path) -> None:
    with listening(up, "h3", TIMED, tmp_path) as child:
        up.run("h1", python(BLAST, tmp_path), 20)
        took = float(child.communicate(timeout=30)[0])
    # The rate is 10 Mbit/s. The burst of 15,000 bytes and the first frame (it starts the clock) do not count.
    assert took > (50 * 1442 - 15_000 - 1442) * 8 / 10e6 * 0.9


def mrclab(prefix: str, *arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mrclab", "exercise", *arguments], cwd=ROOT, input=script, capture_output=True,
        text=True, check=False, timeout=150, env={**os.environ, PREFIX_VARIABLE: prefix},
    )  # fmt: skip


def test_the_command_gives_mininets_prompt_and_leaves_nothing() -> None:
    prefix = f"ey{os.urandom(3).hex()}"
    done = mrclab(
        prefix, str(TUNNEL), "--build", str(DATA), "--target", "ebpf",
        script="h1 ip -br address show eth0\ns1 ip -br link show s1-eth2\nh1 echo ping h2\nexit\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "s2  P4Runtime 127.0.0.1:50052 device 1, runs s2-runtime.json" in done.stdout
    assert "10.0.1.1/24" in done.stdout + done.stderr
    assert "s1-eth2@" in done.stdout + done.stderr
    assert "ping 10.0.2.2" in done.stdout + done.stderr, "a host's name stands for its address"
    assert not [n for n in namespaces() if n.startswith(prefix)]


def test_bad_input_is_one_line_and_touches_nothing(tmp_path: Path) -> None:
    for arguments, message in (
        ([str(tmp_path / "none")], "no directory"),
        ([str(TUNNEL)], "compile the program first"),
    ):
        done = mrclab("eznone", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not [n for n in namespaces() if n.startswith("eznone")]
