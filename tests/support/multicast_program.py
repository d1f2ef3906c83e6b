"""The test program `multicast`: its P4Info with packet I/O, and frames for it."""

from __future__ import annotations

import struct

from finsy.proto import p4i

from tests.support.switch_kit import DATA, read_p4info

# The program parses the controller headers as the first header of every frame.
FIELDS = [("group", 16), ("op", 8), ("rid", 8), ("port", 16), ("length", 16), ("type", 8)]
KEY = struct.Struct("!HBBHHB")


def p4info() -> p4i.P4Info:
    info = read_p4info(DATA / "multicast.p4info.txtpb")
    for i, name in enumerate(("packet_in", "packet_out"), 1):
        header = info.controller_packet_metadata.add()
        header.preamble.id = p4i.P4Ids.CONTROLLER_HEADER << 24 | i
        header.preamble.name = header.preamble.alias = name
        for number, (field, width) in enumerate(FIELDS, 1):
            header.metadata.add(id=number, name=field, bitwidth=width)
    return info


def frame(group: int, op: int = 0, size: int = 60) -> bytes:
    return KEY.pack(group, op, 0, 0, 0, 0) + bytes(i & 0xFF for i in range(size))
