"""Starting and stopping targets, the command line, and clients of other projects."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from finsy.proto import p4i, p4r

from mrclab.linux.errors import BadInputError, SwitchError
from mrclab.linux.processes import Child, inside, python
from mrclab.p4src.targets import BMV2_PROGRAM
from mrclab.shell_environment import shell_python
from mrclab.switches.bmv2 import Bmv2Target
from mrclab.switches.ebpf.main import loopback, parse, read_specs
from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.spec import SwitchSpec
from mrclab.switches.target import SwitchTarget, select_target
from tests.support.privilege import AS_NOBODY
from tests.support.switch_kit import (
    DST,
    JSON,
    MY_SID,
    P4INFO,
    ROOT,
    Client,
    Names,
    Namespace,
    forwarded,
    insert,
    receive,
    sid,
)


def test_auto_takes_bmv2_only_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert select_target().name == "ebpf"
    program = tmp_path / BMV2_PROGRAM
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert select_target("auto").name == "bmv2"
    assert select_target("ebpf").name == "ebpf"
    with pytest.raises(BadInputError, match="choose auto, ebpf or bmv2"):
        select_target("tofino")


def test_bmv2_says_that_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = Bmv2Target().available()
    assert reason is not None
    assert "--target ebpf" in reason


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("127.0.0.1:9559", "127.0.0.1:9559"),
        ("localhost:1", "localhost:1"),
        ("0.0.0.0:50051", "127.0.0.1:50051"),
        ("[::]:50051", "127.0.0.1:50051"),
    ],
)
def test_the_server_keeps_to_loopback(given: str, used: str) -> None:
    assert loopback(given) == used


@pytest.mark.parametrize("address", ["192.0.2.1:9559", "127.0.0.1", "127.0.0.1:x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(BadInputError):
        loopback(address)


def test_the_command_line_is_that_of_simple_switch_grpc() -> None:
    argv = ["--device-id", "7", "-i", "1@a", "-i", "2@b", "--no-p4", "--", "--grpc-server-addr", "0.0.0.0:5"]
    options = parse([*argv, "--cpu-port", "255"])
    assert options.specs == (SwitchSpec("s7", 7, {1: "a", 2: "b"}, 255),)
    assert (options.json_file, options.address) == (None, "127.0.0.1:5")
    assert parse(["-i", "0@a", "prog.json"]).json_file == Path("prog.json")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["-i", "eth0", "--no-p4"],
        ["-i", "1@a", "-i", "1@b", "--no-p4"],
        ["--no-p4", "--bogus"],
        ["--no-p4", "--device-id", "x"],
        ["--no-p4", "--", "--bogus"],
        ["--fabric", "/nowhere.json"],
    ],
)
def test_bad_command_lines_exit_with_2_and_one_line(argv: list[str]) -> None:
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", *argv]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_fabrics_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    for text in ("{", "{}", '[{"name": "a"}]', '[{"name": "a", "device_id": 1, "ports": []}]'):
        path.write_text(text)
        if text != "{}":
            with pytest.raises(BadInputError):
                read_specs(path)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs setpriv")
def test_without_root_it_exits_with_3_and_names_the_mend() -> None:
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", "--no-p4"]
    if os.geteuid() == 0:
        command = [*AS_NOBODY, *command]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=env, check=False)
    assert done.returncode == 3, done.stderr
    assert "root" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.root
def test_here_it_is_available_and_probing_leaves_nothing() -> None:
    before = subprocess.run(["tc", "qdisc", "show"], check=True, capture_output=True).stdout
    assert EbpfTarget().available() is None
    assert subprocess.run(["tc", "qdisc", "show"], check=True, capture_output=True).stdout == before


@pytest.mark.root
@pytest.mark.parallel
def test_a_missing_interface_is_bad_input(namespace: Namespace, tmp_path: Path) -> None:
    target = EbpfTarget()
    with pytest.raises(BadInputError, match="no interface nope0"):
        target.start([SwitchSpec("s", 1, {1: "nope0"})], netns=namespace.name, log_dir=tmp_path)
    assert target.pids() == []
    with pytest.raises(BadInputError, match="no network namespace"):
        target.start([SwitchSpec("s", 1, {})], netns="not-there", log_dir=tmp_path)


@pytest.mark.root
@pytest.mark.parallel
def test_an_address_in_use_exits_with_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        words = ["--fabric", str(tmp_path / "none.json"), "--", "--grpc-server-addr", address]
        command = [sys.executable, "-m", "mrclab.switches.ebpf.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    said = done.stderr.splitlines()
    assert done.returncode == 2, said
    assert said[-1] == f"simple_switch_ebpf: cannot listen on {address}: is it in use?"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parallel
def test_stop_leaves_nothing_and_a_killed_server_is_replaced(
    namespace: Namespace,
    tmp_path: Path,
    mrc_json: bytes,
    mrc_info: p4i.P4Info,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MRCLAB_RUN", "run-7")
    namespace.pair("s1", "h1")
    spec = SwitchSpec("s", 1, {1: "s1"})
    for kill in (True, False):
        target = EbpfTarget()
        (running,) = target.start([spec], netns=namespace.name, log_dir=tmp_path)
        assert "clsact" not in namespace.qdiscs()  # the killed switch's qdisc is gone
        (pid,) = target.pids()
        assert b"MRCLAB_RUN=run-7" in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/ns/net") == f"net:[{os.stat(f'/run/netns/{namespace.name}').st_ino}]"
        with forwarded(namespace, running.grpc_address) as address:
            client = Client(address, 1)
            client.become_primary()
            client.set_pipeline(mrc_json, mrc_info)
            client.close()
        assert "clsact" in namespace.qdiscs()
        assert target.alive()
        if kill:
            os.kill(pid, signal.SIGKILL)
        target.stop()
        assert not target.alive()
        assert ("clsact" in namespace.qdiscs()) == kill


@pytest.mark.root
@pytest.mark.parallel
def test_the_console_script_runs_a_json_file(namespace: Namespace, tmp_path: Path) -> None:
    for i in (1, 2):
        namespace.pair(f"s{i}", f"h{i}")
    program = ROOT / "tests/switches/data/arith.json"
    command = python(
        "mrclab.switches.ebpf.main", "-i", "1@s1", "-i", "2@s2", str(program), "--", "--grpc-server-addr"
    )
    process = Child(inside(namespace.name, [*command, "127.0.0.1:0"]), tmp_path / "log", pipe_stdout=True)
    try:
        line = process.read_line(30)
        assert line is not None
        assert line.startswith("READY 127.0.0.1:")
        h1, h2 = namespace.packet_socket("h1"), namespace.packet_socket("h2")
        h1.send(bytes([17]) + bytes(60))  # this operation writes the frame's length
        (got,) = receive(h2, 1)
        assert int.from_bytes(got[2:8], "big") == 61
        h1.close()
        h2.close()
    finally:
        process.stop()
    assert process.exit_code(5) == 0
    assert "clsact" not in namespace.qdiscs()


@pytest.mark.root
@pytest.mark.parallel
def test_finsy_programs_the_switch(namespace: Namespace, tmp_path: Path, mrc_info: p4i.P4Info) -> None:
    import finsy as fy

    namespace.pair("s1", "h1")
    target = EbpfTarget()
    (running,) = target.start([SwitchSpec("s", 9, {1: "s1"})], netns=namespace.name, log_dir=tmp_path)

    async def run(address: str) -> None:
        options = fy.SwitchOptions(p4info=P4INFO, p4blob=JSON, device_id=9)

        def entry() -> fy.P4TableEntry:
            return fy.P4TableEntry(
                "my_sid", match=fy.Match({"hdr.ipv6.dst_addr": f"{sid(1):#x}/48"}), action=fy.Action("un")
            )

        async with fy.Switch("s", address, options) as switch:
            await switch.write([+entry()])
            found = [e async for e in switch.read([fy.P4TableEntry("my_sid")])]
            assert [e.action for e in found] == [fy.P4TableAction("un")]
            assert found[0].match is not None
            with pytest.raises(fy.P4ClientError):
                await switch.write([+entry()])
            await switch.write([-entry()])
            assert [e async for e in switch.read([fy.P4TableEntry("my_sid")])] == []
            counters = [c async for c in switch.read([fy.P4CounterEntry("port_rx", index=1)])]
            assert counters[0].packet_count == 0

    try:
        with forwarded(namespace, running.grpc_address) as address:
            asyncio.run(run(address))
    finally:
        target.stop()


SHELL_SCRIPT = """
import sys
import p4runtime_sh.shell as sh
sh.setup(device_id=9, grpc_addr=sys.argv[1], election_id=(0, 5),
         config=sh.FwdPipeConfig(sys.argv[2], sys.argv[3]))
print("tables", [t.name for t in sh.P4Objects(sh.P4Type.table)])
te = sh.TableEntry("MrcIngress.micro_segment.my_sid")(action="MrcIngress.micro_segment.un")
te.match["hdr.ipv6.dst_addr"] = "fcbb:0:1::/48"
te.insert()
n = 0
for entry in sh.TableEntry("MrcIngress.micro_segment.my_sid").read():
    n += 1
print("entries", n)
te.delete()
sh.teardown()
"""


@pytest.mark.root
@pytest.mark.parallel
@pytest.mark.slow
def test_p4runtime_shell_programs_the_switch(namespace: Namespace, tmp_path: Path) -> None:
    interpreter = shell_python()
    namespace.pair("s1", "h1")
    target = EbpfTarget()
    (running,) = target.start([SwitchSpec("s", 9, {1: "s1"})], netns=namespace.name, log_dir=tmp_path)
    try:
        command = [str(interpreter), "-c", SHELL_SCRIPT, running.grpc_address, str(P4INFO), str(JSON)]
        done = subprocess.run(
            inside(namespace.name, command), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "MrcIngress.micro_segment.next_hop" in done.stdout
        assert "entries 1" in done.stdout
    finally:
        target.stop()


@pytest.mark.root
@pytest.mark.parallel
@pytest.mark.parametrize("choice", ["ebpf", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow])])
def test_both_targets_take_the_same_calls(
    choice: str, namespace: Namespace, tmp_path: Path, mrc_json: bytes, mrc_info: p4i.P4Info
) -> None:
    names = Names(mrc_info)
    specs = []
    for i in (1, 2):
        for p in (1, 2):
            namespace.pair(f"s{i}p{p}", f"h{i}p{p}")
        specs.append(SwitchSpec(f"s{i}", 20 + i, {p: f"s{i}p{p}" for p in (1, 2)}))
    target: SwitchTarget = select_target(choice)
    assert target.available() is None
    running = target.start(specs, netns=namespace.name, log_dir=tmp_path)
    try:
        assert [r.device_id for r in running] == [21, 22]
        assert target.alive()
        for r in running:
            with forwarded(namespace, r.grpc_address) as address:
                client = Client(address, r.device_id)
                client.become_primary()
                client.set_pipeline(mrc_json, mrc_info)
                client.write(insert(names.entry(MY_SID, {DST: (sid(1), 48)}, "MrcIngress.micro_segment.un")))
                table = names.tables[MY_SID].preamble.id
                found = client.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=table)))
                assert len(found) == 1
                client.close()
        with pytest.raises(BadInputError):
            target.start(specs, netns=namespace.name, log_dir=tmp_path)
    finally:
        pids = target.pids()
        target.stop()
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not target.alive()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parallel
def test_a_fabric_of_many_switches_comes_up_in_seconds(
    namespace: Namespace, tmp_path: Path, mrc_json: bytes, mrc_info: p4i.P4Info
) -> None:
    specs = []
    for i in range(32):
        namespace.pair(f"s{i}", f"h{i}", 1500)
        specs.append(SwitchSpec(f"s{i}", i + 1, {1: f"s{i}"}))
    target = EbpfTarget()
    running = target.start(specs, netns=namespace.name, log_dir=tmp_path)
    try:
        with forwarded(namespace, running[0].grpc_address) as address:
            for r in running:
                client = Client(address, r.device_id)
                client.become_primary()
                client.set_pipeline(mrc_json, mrc_info)
                client.close()
        (pid,) = target.pids()
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0])
        assert resident < 200_000  # in kB
    finally:
        target.stop()
    assert "clsact" not in namespace.qdiscs()


def test_a_fabric_file_becomes_specs(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps([{"name": "a", "device_id": 3, "ports": {"1": "x"}}]))
    assert read_specs(path) == (SwitchSpec("a", 3, {1: "x"}),)


def test_a_process_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    process = Child(["sleep", "60"], tmp_path / "log", pipe_stdout=True)
    try:
        with pytest.raises(SwitchError, match="not ready after"):
            process.read_line(0.2)
    finally:
        process.stop()
    assert not process.alive()
