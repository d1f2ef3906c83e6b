"""The dissector on what a running testbed sends: nothing malformed, every header named, ICRCs good."""

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from hosts.mrc import wire
from tests.end_to_end.conftest import Up, tiny  # noqa: F401
from tests.tools.tshark import fields_of, require_tshark, tshark

pytestmark = pytest.mark.root

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
