"""The contract between the P4 source and Python: formats, codepoints, units, names of tables and actions.

Plain constants and no imports of ours, so that every package can use them. `tests/p4src/test_contract.py`
compares each constant that the P4 source has too with its text.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Counters (headers.p4, mrc_switch.p4)
DROP_COUNT: Final = 16
"""Cells for drop reasons; the cell of a port and a reason in `port_drops` is port * DROP_COUNT + reason."""


class Drop(IntEnum):
    """Why a switch dropped a frame (`drop_t`)."""

    NOT_IPV6 = 1
    HOP_LIMIT = 2
    NOT_OUR_SID = 3
    NO_ROUTE = 4
    FAULT_INGRESS = 5
    FAULT_EGRESS = 6
    QUEUE_FULL = 7
    TRIM_LIMIT = 8
    LIST_ENDED = 9
    SRH_UNREAD = 10
    SRH_WRONG = 11


# Units of table parameters (queue.p4, ecn.p4, fault.p4)
TICKS_PER_US: Final = 1 << 10
"""Waiting times are in ticks."""
BYTE_TIME_ONE: Final = 1 << 16
"""`byte_time` is the ticks that a link takes for a byte, times this."""
RATIO_ONE: Final = 1 << 32
"""`ratio` of a fault is a probability times this; the parameter itself holds at most one less."""

# Trimming (trim.p4): the length of a trimmed frame, in bytes
OUTER_BYTES: Final = 54
"""Ethernet and outer IPv6."""
INNER_IPV6_BYTES: Final = 40
TRANSPORT_BYTES: Final = 40
"""UDP, BTH, METH and RETH."""
TIMESTAMP_BYTES: Final = 4
"""TSETH, in frames that have one."""
TRIMMED_BYTES: Final = OUTER_BYTES + INNER_IPV6_BYTES + TRANSPORT_BYTES
"""An encapsulated frame without a timestamp, trimmed."""
ICRC_BYTES: Final = 4
FRAME_OVERHEAD_BYTES: Final = TRIMMED_BYTES + ICRC_BYTES
"""Bytes of such a frame in addition to its payload: Ethernet to RETH, and the ICRC."""

# Traffic classes: DSCPs, which the controller writes into `traffic_class`, and priorities (queue.p4)
NO_TRIM_DSCP: Final = 0
"""Data that switches drop rather than trim. Any DSCP not named here is treated alike."""
TRIMMABLE_DSCP: Final = 4
RETX_DSCP: Final = 8
"""Retransmissions; they can be trimmed too, unless the fabric puts them into a higher class."""
TRIMMED_DSCP: Final = 12
TRIMMED_LAST_HOP_DSCP: Final = 16
"""Trimmed by the last switch, whose congestion is incast and says nothing about the path."""
CONTROL_DSCP: Final = 46
PRIORITY_TRIMMED: Final = 1
"""Data has priority 0."""
PRIORITY_CONTROL: Final = 2

# The smallest queue of a port, in frames of the largest size; how many such queues deep the last hop trims
QUEUE_MIN_FRAMES: Final = 16
QUEUE_TRIM_LAST_HOP: Final = 1.5

# Path probes (headers.p4, probe.p4)
PROBE_PORT: Final = 4799
"""UDP port of a path probe, into which switches write records."""
PROBE_VERSION: Final = 1
"""The format to which switches answer: the key that the controller writes into `probe_version`."""
PROBE_MAX_HOPS: Final = 8
"""Records of a probe that a switch can parse."""
PROBE_HEADER: Final = "!BBBBIQ"
"""struct format of `probe_t`: version, capacity, used, reserved, id, time sent."""
PROBE_RECORD: Final = "!IHHIQ"
"""struct format of `hop_t`: node, ingress port, egress port, wait (ticks), time of arrival (us)."""

# Tables and the action profile, by the names of P4
MY_SID_TABLE: Final = "my_sid"
NEXT_HOP_TABLE: Final = "next_hop"
TRAFFIC_CLASS_TABLE: Final = "traffic_class"
PORT_QUEUE_TABLE: Final = "port_queue"
MARKING_TABLE: Final = "marking"
PROBE_VERSION_TABLE: Final = "probe_version"
ROUTE_TABLE: Final = "route"
FAULT_TABLE: Final = "fault"
UPLINK_TABLE: Final = "uplink"
WAYS_PROFILE: Final = "ways"

# Actions that Python writes, by table
TABLE_ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    MY_SID_TABLE: ("un",),
    NEXT_HOP_TABLE: ("forward",),
    TRAFFIC_CLASS_TABLE: ("data", "trimmable", "cut", "urgent"),
    PORT_QUEUE_TABLE: ("send_at",),
    MARKING_TABLE: ("red",),
    PROBE_VERSION_TABLE: ("record",),
    ROUTE_TABLE: ("send_to", "read_ev"),
    UPLINK_TABLE: ("send_to",),
    FAULT_TABLE: ("blackhole", "lose", "corrupt", "limit_rate"),
}
CLASS_ACTIONS: Final[dict[str, str]] = {
    "data": "data",
    "trimmable": "trimmable",
    "high": "cut",
    "control": "urgent",
}
"""The action of `traffic_class` for each class of a switch map. If a queue is full, `data` is dropped and
`trimmable` trimmed; `high` goes ahead of both, and `control` ahead of all; neither is trimmed or dropped."""
SWITCH_MAP: Final[dict[int, str]] = {
    TRIMMABLE_DSCP: "trimmable",
    RETX_DSCP: "trimmable",
    TRIMMED_DSCP: "high",
    TRIMMED_LAST_HOP_DSCP: "high",
    CONTROL_DSCP: "control",
}
"""The class of each DSCP unless a fabric sets another; any other DSCP is `data`."""
