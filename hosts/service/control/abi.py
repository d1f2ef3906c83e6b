"""The structures and numbers of `mrc_ctl.h` 1.0.1, in the layout of a program's memory on x86-64.

A controller is a program that controls the NIC. It passes addresses of structures; the service reads and
writes the structures there. `native/mrc_ctl_abi.h` has the same layout in C, and a test compares both
layouts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final

STRUCTS: Final[Mapping[str, str]] = {
    "device_attr": "=I10I4xI4xQII",
    "port_attr": "=i",
    "ev_fmt_field": "=B",
    "ev_fmt_profile_attr": "=iii4xi4xQi4x128s",
    "ev": "=32sB",
    "ev_field": "=5I",
    "ev_op_entry": "=32sB32sB2xII",
    "ev_profile_attr": "=iii4xQIIi4xi4xQi4xi4xQi4x128s",
    "cc_profile_attr": "=iiQQ128s",
    "cc_nscc_cfg": "=B3x3I5fIB3xII",
    "ev_event": "=Q32sB3xII4x",
    "ep_req": "=H6x16s16si32sB3xI4x",
    "ep_rsp": "=HBxIB3x",
}
"""The layout of each structure, as codes of Python's `struct`. Names are without ``mrc_ctl_``."""

DEVICE = struct.Struct(STRUCTS["device_attr"])
PORT = struct.Struct(STRUCTS["port_attr"])
FORMAT = struct.Struct(STRUCTS["ev_fmt_profile_attr"])
FIELD = struct.Struct(STRUCTS["ev_field"])
ENTRY = struct.Struct(STRUCTS["ev_op_entry"])
EVS = struct.Struct(STRUCTS["ev_profile_attr"])
CC = struct.Struct(STRUCTS["cc_profile_attr"])
NSCC = struct.Struct(STRUCTS["cc_nscc_cfg"])
EVENT = struct.Struct(STRUCTS["ev_event"])
REQUEST = struct.Struct(STRUCTS["ep_req"])
RESPONSE = struct.Struct(STRUCTS["ep_rsp"])

EV_BITS: Final = 256
"""Number of bits of the array that contains an EV. The EV is left-aligned."""
VENDOR: Final = bytes(128)


class State(IntEnum):
    """States of a profile."""

    INIT = 0
    OFFLINE = 1
    ONLINE = 2


class FormatMode(IntFlag):
    """Modes of an EV format. The values can be combined into a mask."""

    STEV = 1
    SRV6 = 2
    UDP = 4


class Mode(IntFlag):
    """Modes of an EV profile. The values can be combined into a mask."""

    AUTO = 1
    EXPLICIT = 2
    GENERATED = 4


class EvOp(IntEnum):
    """Operations on EVs. The first two change EVs, the other two query them."""

    REPLACE = 0
    SET_STATE = 1
    QUERY_STATE = 2
    QUERY_ARRAY = 3


MODIFY, QUERY = 0, 1
"""Operations on the fields of a format or of EVs."""
ALL_COPIES = 1
"""Flag in an entry of a REPLACE request: replace all copies of the EV, not only the first."""


class FormatMask(IntFlag):
    """The attributes of an EV format."""

    STATE = 1 << 0
    CURRENT = 1 << 1
    MODE = 1 << 2
    OP = 1 << 3
    VENDOR = 1 << 31


class EvsMask(IntFlag):
    """The attributes of an EV profile."""

    STATE = 1 << 0
    CURRENT = 1 << 1
    MODE = 1 << 2
    FORMAT = 1 << 3
    COUNT = 1 << 4
    MIN_ACTIVE = 1 << 5
    EVENTS = 1 << 6
    EV_OP = 1 << 7
    FIELDS_OP = 1 << 8
    VENDOR = 1 << 31


class CcMask(IntFlag):
    """The attributes of a congestion control profile."""

    STATE = 1 << 0
    CURRENT = 1 << 1
    ALGORITHM = 1 << 2
    CONFIG = 1 << 3
    VENDOR = 1 << 31


class Option(IntFlag):
    """Optional abilities of a device."""

    MODIFY_ONLINE_EVS = 1
    MODIFY_ONLINE_CC = 2
    EV_EVENTS = 4
    EXPLICIT_RANGES_ONLY = 8
    EXACT_DROPS = 16
    PROBES = 32


def ev_number(data: bytes, bits: int) -> int:
    """Return the EV of ``bits`` bits in an array. Raise ValueError if other bits of the array are set."""
    value = int.from_bytes(data, "big")
    rest = EV_BITS - bits
    if value & (1 << rest) - 1:
        raise ValueError(f"an EV of this profile has {bits} bits")
    return value >> rest


def ev_array(ev: int, bits: int) -> bytes:
    """Return the array for an EV of ``bits`` bits."""
    return (ev << EV_BITS - bits).to_bytes(EV_BITS // 8, "big")
