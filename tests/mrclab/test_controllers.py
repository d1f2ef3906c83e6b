"""A controller in C, which uses only the control API, steers the traffic of another program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from mrclab.native.build import MRC, SOURCE, libraries
from tests.support.command import Up
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        shutil.which("cc") is None or not HEADER.exists(),
        reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
    ),
]
SOURCES = ROOT / "tests" / "support" / "programs"
PORT, SIZE, COUNT = "18516", 65536, 2000
TIMEOUT_S = 60
PLANE, T1 = 0, 0


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, str]]:
    built = next(path.parent for path in libraries() if path.name == MRC)
    mrc = [f"-I{SOURCE}", f"-L{built}", f"-l:{MRC}", f"-Wl,-rpath-link,{built}", "-libverbs"]
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # other users also run the programs
        for name in ("pair", "controller"):
            made[name] = f"{folder}/{name}"
            argv = ["cc", "-O2", "-Wall", "-Werror", "-o", made[name], SOURCES / f"{name}.c"]
            subprocess.run([*argv, *(mrc if name == "controller" else ["-libverbs"])], check=True)
        yield made


@contextmanager
def _program(up: Up, host: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    argv = up.mrclab.command("exec", host, "--", *words)
    with subprocess.Popen(
        argv, env=up.mrclab.environment, stdin=PIPE, stdout=PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _sent(up: Up) -> dict[str, int]:
    """Return the bytes that h0's T0 has sent to each T1 of the plane."""
    sent = up.mrclab.status()["switches"][f"p{PLANE}-t0-0"]["counters"]["tx"]
    links = {port.peer.node: port.number for port in up.fabric.switch(f"p{PLANE}-t0-0").ports}
    return {node: sent[str(number)]["bytes"] for node, number in links.items() if "-t1-" in node}


def test_denied_evs_carry_no_data_any_more(tiny: Up, programs: dict[str, str]) -> None:
    link = f"p{PLANE}-t1-{T1}"
    pair, controller, size, count = programs["pair"], programs["controller"], str(SIZE), str(COUNT)
    at_first = _sent(tiny)
    with (
        _program(tiny, "h2", pair, "server", PORT, size, count) as server,
        _program(tiny, "h0", pair, "client", PORT, size, count, "h2", "pause") as client,
    ):
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        assert client.stdout.readline() == "half\n"
        answers = tiny.mrclab.ok("exec", "h0", "--", controller, "probe", "10.99.0.3")
        at_half = _sent(tiny)
        denied = tiny.mrclab.ok("exec", "h0", "--", controller, "deny", str(PLANE), str(T1))
        client.stdin.write("\n")
        client.stdin.flush()
        client_said, _ = client.communicate(timeout=TIMEOUT_S)
        server_said, _ = server.communicate(timeout=TIMEOUT_S)
        assert f"ok {COUNT} messages" in client_said
        assert f"ok {COUNT} messages" in server_said
    tiny.mrclab.ok("exec", "h0", "--", controller, "allow", str(PLANE), str(T1))
    at_end = _sent(tiny)
    found, _, known = denied.split()
    assert 0 < int(found) < int(known)
    assert answers == f"{known} answers\n"
    half_bytes = SIZE * COUNT // 2
    assert at_half[link] - at_first[link] > half_bytes / 20
    assert at_end[link] - at_half[link] < half_bytes / 100


def test_mistakes_are_errors_and_rights_are_needed(tiny: Up, programs: dict[str, str]) -> None:
    assert tiny.mrclab.ok("exec", "h1", "--", programs["controller"], "refuse") == "refused\n"
    words = ("exec", "--user", "65534", "h1", "--", programs["controller"], "refuse")
    done = tiny.mrclab(*words, cwd="/")
    assert done.returncode == 1
    assert "Operation not permitted" in done.stderr
