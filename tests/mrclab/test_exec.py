"""Real programs on a real fabric: their view of the fabric, their data while links are cut, their exit."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mrclab.hosts.workloads.graph import matched
from mrclab.hosts.workloads.recorded import read_recorded, recorded_graph
from tests.support.command import Up
from tests.support.native_programs import (
    await_retired,
    built,
    cut_at_half,
    end,
    end_service,
    needs_compiler,
    running,
    service,
)
from tests.support.paths import ROOT

pytestmark = [pytest.mark.root, needs_compiler]
PORT = "18515"
TIMEOUT_S = 60
LINK = "p0-t0-0:p0-t1-0"


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Path]]:
    """Compile the test program in C, once for the system's libibverbs and once for lib_mrc.so."""
    with built(verbs="pair", mrc="pair") as made:
        yield made


def test_a_program_sees_the_host_its_device_and_the_names_of_others(tiny: Up) -> None:
    script = "getent hosts h2; getent hosts h2-ipv6; ls /sys/class/infiniband /sys/class/net; id -u; pwd"
    done = tiny.mrclab("exec", "--user", "65534", "h0", "--", "sh", "-c", script, cwd="/")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:4] == ["10.99.0.3", "h2", "fd99::3", "h2-ipv6"]
    assert {"mrc0", "mgmt0", "h0-eth0", "h0-eth1"} <= set(words)
    assert words[-2:] == ["65534", "/"]
    assert not Path("/sys/class/infiniband/mrc0").exists()
    assert "h2-ipv6" not in Path("/etc/hosts").read_text()


def test_exit_codes_and_arguments_are_the_program_s(tiny: Up) -> None:
    done = tiny.mrclab("exec", "h0", "--", "sh", "-c", 'echo "$1"; exit 7', "x", "a  b")
    assert (done.returncode, done.stdout) == (7, "a  b\n")


def test_a_program_has_no_children_that_it_did_not_start(tiny: Up) -> None:
    """The NIC service is not the program's child, so the program may wait for all of its children."""
    script = "import os\ntry:\n    os.waitpid(-1, 0)\nexcept ChildProcessError:\n    print('none')"
    assert tiny.mrclab.ok("exec", "h3", "--", sys.executable, "-c", script) == "none\n"


def test_a_program_on_all_hosts_has_a_rank_in_each(tiny: Up) -> None:
    script = 'echo "$MRCLAB_HOST $RANK/$WORLD_SIZE $MASTER_ADDR"'
    lines = tiny.mrclab.ok("exec", "--all", "--", "sh", "-c", script).splitlines()
    assert sorted(lines) == [f"h{n} {n}/4 10.99.0.1" for n in range(4)]


def test_one_rank_that_fails_ends_the_others(tiny: Up) -> None:
    script = 'if [ "$RANK" = 2 ]; then exit 9; fi; exec sleep 1000'
    started = time.monotonic()
    assert tiny.mrclab("exec", "--all", "--", "sh", "-c", script).returncode == 9
    assert time.monotonic() - started < TIMEOUT_S


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("h9", "--", "true"), "no host 'h9' in topology tiny: h0, h1, h2, h3"),
        (("h0",), "exec needs a program"),
        (("h0", "--", "no-such-program"), "no program 'no-such-program' here"),
        (("--user", "no-such-user", "h0", "--", "true"), "no user 'no-such-user' here"),
        (("--user", "²", "h0", "--", "true"), "no user '²' here"),
        (("--all", "--", "no-such-program"), "no program 'no-such-program' here"),
        (("--all", "--user", "no-such-user", "--", "true"), "no user 'no-such-user' here"),
        (("--all", "--record", "/no/such/x", "--", "true"), "cannot write '/no/such/x'"),
    ],
)
def test_bad_input_is_one_line(tiny: Up, words: tuple[str, ...], said: str) -> None:
    done = tiny.mrclab("exec", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def _as_in_docker() -> list[str]:
    """Return a command that starts a program with only the capabilities of docker-compose.yml's container."""
    kept = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-lab"]["cap_add"]
    listed = ",".join(f"+{name.lower()}" for name in kept)
    return ["setpriv", f"--bounding-set=-all,{listed}", "--inh-caps=-all"]


@pytest.mark.parametrize(
    ("api", "user", "limited"),
    [("verbs", (), False), ("mrc", ("--user", "65534"), True)],
    ids=["verbs", "mrc as nobody in Docker"],
)
def test_every_byte_arrives_while_a_link_is_cut(
    tiny: Up, pairs: dict[str, Path], api: str, user: tuple[str, ...], limited: bool
) -> None:
    limits = _as_in_docker() if limited else []
    if limited:
        for host in ("h0", "h2"):
            end_service(tiny, host)  # so that a new service starts, which is limited too
    words = (*user, "--", str(pairs[api]))
    with (
        running(tiny, "h2", *words, "server", PORT, "65536", "2000", "events", limits=limits) as server,
        running(tiny, "h0", *words, "client", PORT, "65536", "2000", "h2", "pause", limits=limits) as client,
    ):
        cut_ns = cut_at_half(tiny, LINK, client, server, "ok 2000 messages of 65536 bytes")
    await_retired(tiny, "h0", cut_ns)


def test_what_both_ends_requested_is_recorded_to_the_byte(
    tiny: Up, pairs: dict[str, Path], tmp_path: Path
) -> None:
    files = {host: tmp_path / f"{host}.jsonl" for host in ("h0", "h2")}
    words = {host: ("--record", str(file), "--", str(pairs["verbs"])) for host, file in files.items()}
    with (
        running(tiny, "h2", *words["h2"], "server", PORT, "5000", "200") as server,
        running(tiny, "h0", *words["h0"], "client", PORT, "5000", "200", "h2") as client,
    ):
        assert "ok 200 messages of 5000 bytes" in end(client)
        assert "ok 200 messages of 5000 bytes" in end(server)
    assert (client.returncode, server.returncode) == (0, 0)
    recorded = read_recorded("".join(file.read_text() for file in files.values()), "both")
    messages = [request for request in recorded.requests if request.imm]
    assert [(m.host, m.peer, m.size_bytes) for m in messages] == [("h0", "h2", 5000)] * 200
    assert [arrival.host for arrival in recorded.arrivals] == ["h2"] * 200
    credits = [request for request in recorded.requests if request.host == "h2"]
    assert [request.size_bytes for request in credits] == [8] * 200
    graph = recorded_graph("both", recorded)
    matched(graph)  # all requests have ended
    asked_for = sum(op.size_bytes for listed in graph.ranks for op in listed if op.kind == "send")
    assert asked_for == sum(request.size_bytes for request in recorded.requests)


def test_a_recording_of_all_hosts_has_a_part_of_each(tiny: Up, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    tiny.mrclab.ok("exec", "--all", "--record", str(file), "--", "true")
    assert [json.loads(line)["host"] for line in file.read_text().splitlines()] == ["h0", "h1", "h2", "h3"]
    assert list(tmp_path.iterdir()) == [file]


def test_a_recorded_program_keeps_its_exit_code(tiny: Up, tmp_path: Path) -> None:
    record = ("exec", "--record", str(tmp_path / "x"))
    assert tiny.mrclab(*record, "h0", "--", "sh", "-c", "exit 7").returncode == 7
    done = tiny.mrclab("exec", "--record", "/no/such/place", "h0", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--record: cannot write '/no/such/place': No such file or directory" in done.stderr


@pytest.mark.parametrize("victim", ["reader", "writer", "reader's service", "writer's service"])
def test_programs_end_by_themselves_when_a_peer_or_service_is_killed(
    tiny: Up, pairs: dict[str, Path], victim: str
) -> None:
    pair = pairs["verbs"]
    with (
        running(tiny, "h2", "--", str(pair), "server", PORT, "65536", "1000000", "events") as server,
        running(tiny, "h0", "--", str(pair), "client", PORT, "65536", "1000000", "h2") as client,
    ):
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        if "service" in victim:
            os.kill(service(tiny, "h2" if "reader" in victim else "h0"), signal.SIGKILL)
        else:
            (server if victim == "reader" else client).kill()
        client_said, server_said = end(client), end(server)
    if victim != "writer":
        assert "failed with status" in client_said
        assert client.returncode == 3
    if victim != "reader":
        assert "the peer is gone" in server_said or "failed with status" in server_said
        assert server.returncode in (3, 4)
    done = tiny.mrclab("exec", "h0", "--", str(pair), "client", PORT, "8", "1", "no-such-host")
    assert "getaddrinfo" in done.stderr  # a new service runs, and the program reached it
