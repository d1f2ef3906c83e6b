"""The dissector on what a running testbed sends: nothing malformed, every header named, ICRCs good."""

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from hosts.mrc import wire
from hosts.stream import StreamPlan
from tests.end_to_end.agents import Incast, incast, incast_network
from tests.end_to_end.conftest import Up, tiny  # noqa: F401
from tests.tools.tshark import fields_of, registered_fields, require_tshark, tshark

pytestmark = pytest.mark.root

NEVER_HERE: set[str] = set()
CHECK_ICRC = ("-o", "mrc.icrc:Every packet (slow)")


@pytest.fixture(scope="module", params=["any", "h0-eth1"])
def capture(
    tiny: Up,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """A capture (SLL2 and Ethernet) on h0 while it writes to h3 and back."""
    require_tshark()
    path: Path = tmp_path_factory.mktemp("run") / "run.pcap"
    namespace = ["ip", "netns", "exec", tiny.host_namespace("h0")]
    with subprocess.Popen(
        [*namespace, "tcpdump", "-i", request.param, "-B", "16384", "-U", "-w", str(path), "ip6"],
        stderr=subprocess.PIPE,
        text=True,
    ) as tcpdump:
        try:
            assert tcpdump.stderr is not None
            while "listening" not in tcpdump.stderr.readline():
                assert tcpdump.poll() is None
            run = ("perf", "write_bw", "--from", "h0", "--to", "h3", "-b", "-s", "10000", "-n", "100")
            tiny.mrclab.ok(*run)
            time.sleep(1.2)  # tcpdump's ring hands frames over at the latest after one second
        finally:
            tcpdump.terminate()
    return path


def test_a_run_is_shown_whole(capture: Path) -> None:
    assert tshark("-r", str(capture), "-Y", "_ws.malformed || mrc.expert.short") == ""
    names = ["mrc.bth.opcode", "mrc.icrc.status", "mrc.ev.plane", "mrc_usid.plane", "infiniband.bth.opcode"]
    packets = fields_of(capture, [*names, "udp.dstport"], *CHECK_ICRC)
    packets = [p for p in packets if p.get("udp.dstport") == str(wire.UDP_PORT)]
    assert len(packets) > 300
    assert Counter(p["mrc.icrc.status"] for p in packets) == {"good": len(packets)}
    seen = {wire.Opcode(int(p["mrc.bth.opcode"], 16)) for p in packets}
    assert {wire.Opcode.WRITE_FIRST, wire.Opcode.WRITE_MIDDLE, wire.Opcode.WRITE_LAST} <= seen
    assert wire.Opcode.SACK in seen
    for packet in packets:
        assert "infiniband.bth.opcode" not in packet
        assert set(packet["mrc_usid.plane"].split(",")) == {packet["mrc.ev.plane"]}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture at a host that two others overload, with a path cut, a port down, probes and timestamps."""
    require_tshark()
    directory = tmp_path_factory.mktemp("all")
    path: Path = directory / "all.pcap"
    config = {
        "timestamps": True,
        "transport_ack": True,
        "probe_interval_ns": 1_000_000,
        "cwnd_bytes": 64 * 4096,
    }
    plan = StreamPlan(20_000, 1_000_000_000, seed=4, mixed=True)
    with incast_network(directory) as (network, mrclab):
        sniffer = network.spawn(
            "h2", ["tcpdump", "-i", "any", "-B", "16384", "-U", "-w", str(path), "ip6"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            while "listening" not in sniffer.stderr.readline():
                assert sniffer.poll() is None
            with incast(network, ("h0", "h1"), "h2", config, plan) as both:
                both.calibrate()
                for agent in both.senders.values():
                    agent.ask("start")
                reach(both, 30)
                mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-0")
                reach(both, 60)
                mrclab.ok("restore", "p0-t0-0:p0-t1-0")
                namespace = network.names.host("h0")
                for state in ("down", "up"):
                    subprocess.run(["ip", "-n", namespace, "link", "set", "h0-eth1", state], check=True)
                    reach(both, 90 if state == "down" else 120)
                assert all(state["problem"] is None for state in both.stop(timeout_s=60))
            time.sleep(1.2)  # tcpdump's ring hands frames over at the latest after one second
        finally:
            sniffer.terminate()
            sniffer.wait()
    return path


def reach(both: Incast, messages: int) -> None:
    """Waits until every sender has had so many messages acknowledged."""
    while min(agent.ask("status")["completed"] for agent in both.senders.values()) < messages:
        pass


def test_every_opcode_of_a_live_run_is_shown_with_its_fields(everything: Path) -> None:
    assert tshark("-r", str(everything), "-Y", "_ws.malformed || mrc.expert.short") == ""
    names = sorted(registered_fields("mrc"))
    packets = fields_of(everything, [*names, "udp.dstport", "_ws.col.protocol"])
    packets = [p for p in packets if p.get("udp.dstport") == str(wire.UDP_PORT)]
    by_opcode = {
        opcode: [p for p in packets if int(p["mrc.bth.opcode"], 16) == opcode] for opcode in wire.Opcode
    }
    missing = [opcode.name for opcode, found in by_opcode.items() if not found]
    assert not missing
    requests = by_opcode[wire.Opcode.ENDPOINT_REQUEST]
    assert {int(p["mrc.endpoint.request"], 0) for p in requests} == {int(op) for op in wire.EndpointOp}
    assert any(p["mrc.nack.reason"] == "0x02" for p in by_opcode[wire.Opcode.NACK]), "trimmed at the last hop"
    seen = {name for p in packets for name in p}
    # Only what no endpoint does by itself may be missing: corrupt frames, marks on these links, refusals.
    assert {n for n in names if n not in seen and not n.startswith("mrc.expert")} <= NEVER_HERE
