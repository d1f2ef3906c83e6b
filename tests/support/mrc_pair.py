"""Two MRC endpoints between which a test carries every frame, and functions that read and forge frames."""

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.rdma.frames import BTH_OFFSET, packet_icrc
from tests.support.mrc_sim import Network, Sim

T_SENT = 128 * 0x1234
"""The time of sending in ns. It gives the timestamp 1234 (hexadecimal)."""


class Pair:
    """Two endpoints between which the test carries each frame.

    Transport ACKs are off unless a test turns them on, so the receiver answers only with SACKs.
    """

    def __init__(self, **options):
        config = MrcConfig(**{"timestamps": True, "sack_coalesce": 1, "transport_ack": False, **options})
        self.sim = Sim(seed=1, planes=2, paths=1, config=config, network=Network(jitter_ns=0))
        self.a, self.b = self.sim.ends
        self.qpn_a, self.qpn_b = self.sim.qpns
        self.region = self.b.register_memory(bytearray(1 << 16))
        self.psn = self.a.qps[self.qpn_a].psn
        # The two QPNs in the form in which tests write them.
        self.ids = f"{self.qpn_a & 0xFFFF:04x} {self.qpn_b & 0xFFFF:04x}"

    def post(self, size, imm=None, va=0, wr_id=1):
        where = self.region
        self.a.post_write(self.qpn_a, wr_id, bytes(size), where.address + va, where.rkey, imm=imm)

    def send(self, now=T_SENT):
        return self.a.frames_to_send(now, None, 1000)

    def take(self, frames, now=T_SENT):
        """Give frames to the receiver and return its answers."""
        for port, frame in frames:
            self.b.receive(port, frame, now)
        return [frame for _, frame in self.b.frames_to_send(now, None, 1000)]


def body(frame):
    """Return the bytes between the UDP header and the ICRC, in hexadecimal."""
    return frame[BTH_OFFSET:-4].hex()


def reseal(frame: bytes) -> bytes:
    """Give a changed frame correct lengths and a correct ICRC, so that these checks accept it."""
    body = bytearray(frame)
    body[106] = 0
    length = len(body) - 94
    body[18:20] = (length + 40).to_bytes(2, "big")
    body[58:60] = body[98:100] = length.to_bytes(2, "big")
    return bytes(body[:-4]) + packet_icrc(bytes(body[54:102]), bytes(body[102:-4]))


def with_flags(frame: bytes, flags: int) -> bytes:
    """Replace the flags in a frame's BTH: 0x80 is a, 0x20 is rtx, 0x10 is ts."""
    changed = bytearray(frame)
    changed[BTH_OFFSET + 8] = flags
    return reseal(bytes(changed))
