"""The interface between the NIC service and the C libraries: records, requests and limits, in one table.

`header` writes the table as C, which `native/` is compiled with; `record` makes Python's side of it. All
numbers are in the byte order of the machine, and every record has a size that is a multiple of 8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Final

VERSION: Final = 2
"""Of this layout: the service refuses a library of another version."""

LIMITS: Final[Mapping[str, int]] = {
    "MAX_SGE": 16,
    "MAX_INLINE": 256,
    "MAX_SEND_WR": 8192,
    "MAX_RECV_WR": 8192,
    "MAX_CQE": 1 << 17,
    "MAX_QP": 1024,
    "MAX_CQ": 1024,
    "MAX_MR": 1 << 16,
    "MAX_CHANNEL": 256,
    "MAX_MESSAGE": 1 << 28,
    "GIDS": 4,
}
"""Per program; MAX_MESSAGE is in bytes."""

RECORDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "request": (("op", "I"), ("version", "I"), *((f"a{n}", "Q") for n in range(8)), ("gid", "16s")),
    "reply": (("error", "i"), ("count", "I"), *((f"v{n}", "Q") for n in range(8)), ("data", "96s")),
    "work": (
        *(("wr_id", "Q"), ("remote_addr", "Q"), ("rkey", "I"), ("imm", "I")),
        *(("opcode", "B"), ("flags", "B"), ("num_sge", "H"), ("length", "I"), ("data", "256s")),
    ),
    "sge": (("addr", "Q"), ("length", "I"), ("lkey", "I")),
    "receive": (("wr_id", "Q"),),
    "completion": (
        *(("wr_id", "Q"), ("qp_num", "I"), ("status", "I"), ("opcode", "I"), ("byte_len", "I")),
        *(("imm", "I"), ("flags", "I"), ("retired", "I"), ("cookie", "I")),
    ),
    "event": (("type", "I"), ("id", "I")),
}
"""Fields by record, each with its code in Python's `struct`."""

OPS: Final = (
    *("HELLO", "QUERY_PORT", "REG_MR", "DEREG_MR", "CREATE_CHANNEL", "DESTROY_CHANNEL"),
    *("CREATE_CQ", "DESTROY_CQ", "CREATE_QP", "MODIFY_QP", "DESTROY_QP", "ALLOW", "LIMIT_QP"),
    *("PROFILE_QP", "CONTROL", "RECORD"),
)
"""Requests, numbered from 1."""

CONTROLS: Final = (
    *("QUERY_DEVICE", "QUERY_PORT", "MODIFY_PORT", "QUERY_FORMAT", "MODIFY_FORMAT", "QUERY_EVS"),
    *("MODIFY_EVS", "QUERY_CC", "MODIFY_CC", "WATCH_EVS", "POLL_EVS", "PROBE", "PROBED", "FORGET_PROBES"),
)
"""Requests of a controller: the first argument of CONTROL, numbered from 1."""

WORDS: Final[Mapping[str, int]] = {
    # The page of a session: a counter of posts, and whether the service and the program sleep.
    "SESSION_POSTED": 0,
    "SESSION_ASLEEP": 16,
    "SESSION_NAPS": 32,
    "SESSION_BYTES": 4096,
    # The memory of a queue pair: counters of both rings, then the send ring, then the receive ring.
    "QP_SQ_PROD": 0,
    "QP_SQ_CONS": 16,
    "QP_RQ_PROD": 32,
    "QP_RQ_CONS": 48,
    "QP_STATE": 64,
    "QP_RING_OFFSET": 512,
    # The memory of a completion queue.
    "CQ_PROD": 0,
    "CQ_CONS": 16,
    "CQ_ARMED": 32,
    "CQ_OVERRUN": 48,
    "CQ_RING_OFFSET": 256,
}
"""Places of 32-bit words, counted in words; `_BYTES` and `_OFFSET` are in bytes.

No cache line is written by both sides.
"""

OPCODES: Final[Mapping[str, int]] = {"WORK_WRITE": 0, "WORK_WRITE_IMM": 1}
FLAGS: Final[Mapping[str, int]] = {"WORK_SIGNALED": 1, "WORK_INLINE": 2, "WORK_SOLICITED": 4, "WORK_FENCE": 8}

_C_TYPES = {"I": "uint32_t", "i": "int32_t", "Q": "uint64_t", "H": "uint16_t", "B": "uint8_t"}


@cache
def record(name: str) -> struct.Struct:
    """Return how a record is packed. Raise KeyError for one that does not exist."""
    return struct.Struct("=" + "".join(code for _, code in RECORDS[name]))


def op(name: str) -> int:
    """Return the number of a request."""
    return OPS.index(name) + 1


def header() -> str:
    """Return the table as a C header."""
    lines = ["/* Made from hosts/service/layout.py: do not edit. */", "#pragma once", "#include <stdint.h>"]
    numbers = {"VERSION": VERSION, **LIMITS, **WORDS, **OPCODES, **FLAGS}
    numbers |= {f"OP_{name}": op(name) for name in OPS}
    numbers |= {f"CONTROL_{name}": number for number, name in enumerate(CONTROLS, 1)}
    lines += [f"#define WIRE_{name} {value}u" for name, value in numbers.items()]
    for name, fields in RECORDS.items():
        lines.append(f"struct wire_{name} {{")
        for field, code in fields:
            if code.endswith("s"):
                lines.append(f"    uint8_t {field}[{code[:-1]}];")
            else:
                lines.append(f"    {_C_TYPES[code]} {field};")
        lines.append("};")
        size = record(name).size
        lines.append(f'_Static_assert(sizeof(struct wire_{name}) == {size}, "wire_{name}");')
    return "\n".join(lines) + "\n"
