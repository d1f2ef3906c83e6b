"""The dissector on a running testbed's packets: it shows every header and finds no malformed packet."""

import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from mrclab.control import call
from mrclab.faults.kinds import Fault
from mrclab.hosts.mrc import wire
from mrclab.hosts.rdma import frames
from mrclab.hosts.streams.stream import StreamPlan
from tests.support.agents import Incast, incast, incast_network
from tests.support.command import Up
from tests.support.tshark import end_capture, fields_of, registered_fields, require_tshark, tshark

pytestmark = pytest.mark.root

MESSAGES = 12
"""How many messages each sender completes in each state of the fabric: about a hundred packets."""
CHECK_ICRC = ("-o", "mrc.icrc:Every packet (slow)")


@pytest.fixture(scope="module", params=["any", "h0-eth1"])
def capture(
    tiny: Up,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """Make a capture (SLL2 and Ethernet) on h0 while h0 exchanges writes with h3."""
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
            end_capture(tcpdump, path, tiny.host_namespace("h0"), "h0-eth1")
        finally:
            tcpdump.kill()
    return path


def test_a_run_is_shown_whole(capture: Path) -> None:
    assert tshark("-r", str(capture), "-Y", "_ws.malformed || mrc.expert.short") == ""
    names = ["mrc.bth.opcode", "mrc.icrc.status", "mrc.ev.plane", "mrc_usid.plane", "infiniband.bth.opcode"]
    packets = fields_of(capture, [*names, "udp.dstport"], *CHECK_ICRC)
    packets = [p for p in packets if p.get("udp.dstport") == str(frames.UDP_PORT)]
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
    """Make a capture at a host that two other hosts overload.

    At the same time a path breaks, and a port goes down. The capture also has probes and timestamps.
    """
    require_tshark()
    directory = tmp_path_factory.mktemp("all")
    path: Path = directory / "all.pcap"
    config = {
        "timestamps": True,
        "transport_ack": True,
        "probe_interval_ns": 1_000_000,
        "congestion": "fixed",
        "cwnd_bytes": 64 * 4096,
    }
    plan = StreamPlan(20_000, 1_000_000_000, seed=4, mixed=True)
    with incast_network(directory) as (network, _):
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
                    agent.call("start")
                until_trimmed(both)
                # Call the daemon directly. A command starts slowly, so tshark would get too much traffic.
                call(network.names, "fault", fault=asdict(Fault("blackhole", "p0-t0-0:p0-t1-0")))
                more(both, MESSAGES)
                call(network.names, "restore", where="p0-t0-0:p0-t1-0")
                namespace = network.names.host("h0")
                for state in ("down", "up"):
                    subprocess.run(["ip", "-n", namespace, "link", "set", "h0-eth1", state], check=True)
                    more(both, MESSAGES)
                assert all(state["problem"] is None for state in both.stop(timeout_s=60))
            end_capture(sniffer, path, network.names.host("h2"), "h2-eth0")
        finally:
            sniffer.kill()
            sniffer.wait()
    return path


def until_trimmed(both: Incast) -> None:
    """Wait until switches have trimmed packets of both senders."""
    for qp in range(len(both.senders)):
        while both.sink.call("status", qp=qp)["counters"]["trims_received"] == 0:
            assert all(agent.call("status")["failed"] is None for agent in both.senders.values())


def more(both: Incast, messages: int) -> None:
    """Wait until ``messages`` more messages of each sender are acknowledged."""
    for agent in both.senders.values():
        goal = agent.call("status")["completed"] + messages
        while (status := agent.call("status"))["completed"] < goal:
            assert status["failed"] is None


@pytest.mark.slow
def test_every_opcode_of_a_live_run_is_shown_with_its_fields(everything: Path) -> None:
    names = sorted(registered_fields("mrc"))
    complaints = ["_ws.malformed", "mrc.expert.short"]
    packets = fields_of(everything, [*names, *complaints, "udp.dstport"])
    assert not [p for p in packets if any(complaint in p for complaint in complaints)]
    packets = [p for p in packets if p.get("udp.dstport") == str(frames.UDP_PORT)]
    assert {int(p["mrc.bth.opcode"], 16) for p in packets} == {int(opcode) for opcode in wire.Opcode}
    for kind in ("request", "response"):
        operations = {int(p[name], 0) for p in packets if (name := f"mrc.endpoint.{kind}") in p}
        assert operations == {int(operation) for operation in wire.EndpointOp}
    reasons = {int(p["mrc.nack.reason"], 0) for p in packets if "mrc.nack.reason" in p}
    assert wire.NackReason.TRIMMED_LASTHOP in reasons
    assert not set(names) - {name for packet in packets for name in packet}, "fields that no packet has"
