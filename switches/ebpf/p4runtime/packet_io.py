"""Packet-in and packet-out: frames of the CPU port as stream messages (specification, section 16.1).

A frame to or from the CPU port begins with a header: the fields of the P4Info's
`packet_in` and `packet_out`, one behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from finsy.proto import p4i, p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode, encode
from mrclab.switches.ebpf.runtime.cpu_port import SHORTEST

PACKET_IN, PACKET_OUT = "packet_in", "packet_out"


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


@dataclass(frozen=True)
class ControllerHeader:
    """A controller header: id, name and bits of its fields, in order. Without fields there is no header."""

    name: str
    fields: tuple[tuple[int, str, int], ...] = ()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return (sum(width for _, _, width in self.fields) + 7) // 8

    def read(self, frame: bytes) -> p4r.PacketIn | None:
        """Return the packet-in of a frame that begins with the header; None if the frame is too short."""
        if len(frame) < self.size:
            return None
        out = p4r.PacketIn(payload=frame[self.size :])
        whole, rest = int.from_bytes(frame[: self.size], "big"), self.size * 8
        for number, _, width in self.fields:
            rest -= width
            out.metadata.add(metadata_id=number, value=encode(whole >> rest & ((1 << width) - 1)))
        return out

    def write(self, packet: p4r.PacketOut) -> bytes:
        """Return the frame of a packet-out. Raise P4RuntimeError if metadata does not fit."""
        given: dict[int, bytes] = {}
        known = {number for number, _, _ in self.fields}
        for m in packet.metadata:
            if m.metadata_id not in known:
                raise _bad(f"{self.name} has no metadata {m.metadata_id}")
            if m.metadata_id in given:
                raise _bad(f"metadata {m.metadata_id} of {self.name} is given twice")
            given[m.metadata_id] = m.value
        whole, rest = 0, self.size * 8
        for number, name, width in self.fields:
            if number not in given:
                raise _bad(f"metadata {name} of {self.name} is missing")
            rest -= width
            try:
                whole |= decode(given[number], width, f"{self.name}, {name}") << rest
            except P4RuntimeError as exc:
                raise _bad(exc.message) from exc
        frame = whole.to_bytes(self.size, "big") + packet.payload
        if len(frame) < SHORTEST:
            raise _bad(f"a packet-out of {len(frame)} bytes with its header: it takes {SHORTEST} at least")
        return frame


def controller_headers(info: p4i.P4Info) -> dict[str, ControllerHeader]:
    """Return the controller headers of a P4Info by name. Raise P4RuntimeError INVALID_ARGUMENT."""
    out = {name: ControllerHeader(name) for name in (PACKET_IN, PACKET_OUT)}
    for header in info.controller_packet_metadata:
        name = header.preamble.name
        if name not in out:
            raise _bad(f"controller header {name} is neither {PACKET_IN} nor {PACKET_OUT}")
        for m in header.metadata:
            if m.bitwidth <= 0:
                raise _bad(
                    f"metadata {m.name} of {name} that is not a number is not supported by this target"
                )
        out[name] = ControllerHeader(name, tuple((m.id, m.name, m.bitwidth) for m in header.metadata))
    return out
