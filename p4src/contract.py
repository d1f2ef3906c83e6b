"""Constants that P4 and Python code must agree on: formats, codepoints, units, names of tables and actions.

This module imports nothing from mrclab, so every package can import it. `tests/p4src/test_contract.py`
compares the constants with the P4 source.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Counters (headers.p4, mrc_switch.p4)
DROP_COUNT: Final = 16
"""Cells per port in the counter `port_drops`. The index of a cell is port * DROP_COUNT + drop reason."""


class Drop(IntEnum):
    """The reason why a switch dropped a frame (`drop_t` in P4)."""

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
"""The number of ticks in a microsecond. Switches count waiting times in ticks."""
BYTE_TIME_ONE: Final = 1 << 16
"""`byte_time` is the time, in ticks, that a link needs for one byte, multiplied by this number."""
RATIO_ONE: Final = 1 << 32
"""`ratio` of a fault is a probability, multiplied by this number. The largest `ratio` is RATIO_ONE - 1."""

# Trimming (trim.p4): the length of a trimmed frame, in bytes
OUTER_BYTES: Final = 54
"""The size of the Ethernet header and the outer IPv6 header together."""
INNER_IPV6_BYTES: Final = 40
TRANSPORT_BYTES: Final = 40
"""The size of the headers UDP, BTH, METH and RETH together."""
TIMESTAMP_BYTES: Final = 4
"""The size of the header TSETH, which only some frames have."""
TRIMMED_BYTES: Final = OUTER_BYTES + INNER_IPV6_BYTES + TRANSPORT_BYTES
"""The length of a trimmed frame with an outer IPv6 header and without TSETH."""
ICRC_BYTES: Final = 4
FRAME_OVERHEAD_BYTES: Final = TRIMMED_BYTES + ICRC_BYTES
"""The bytes of a data frame without its payload: headers from Ethernet to RETH (no TSETH), and the ICRC."""

# Traffic classes: DSCPs, which the controller writes into table `traffic_class`, and priorities (queue.p4)
NO_TRIM_DSCP: Final = 0
"""DSCP of data that switches drop instead of trimming. Switches treat unknown DSCPs in the same way."""
TRIMMABLE_DSCP: Final = 4
RETX_DSCP: Final = 8
"""DSCP of retransmitted data. Switches trim such frames, unless the fabric gives this DSCP a higher class."""
TRIMMED_DSCP: Final = 12
TRIMMED_LAST_HOP_DSCP: Final = 16
"""DSCP of frames trimmed by the last switch. This is a sign of incast at the receiver, not of a bad path."""
CONTROL_DSCP: Final = 46
PRIORITY_TRIMMED: Final = 1
"""The priority of trimmed frames. Data has priority 0."""
PRIORITY_CONTROL: Final = 2

# The limits of queues are multiples of the bandwidth-delay product, which counts as at least 16 full-size
# frames. The last switch of a path trims at 1.5 products.
QUEUE_MIN_FRAMES: Final = 16
QUEUE_TRIM_LAST_HOP: Final = 1.5

# Path probes (headers.p4, probe.p4)
PROBE_PORT: Final = 4799
"""The UDP port of path probes. Switches add records to a probe."""
PROBE_VERSION: Final = 1
"""The version of probes that switches support. The controller writes it into the table `probe_version`."""
PROBE_MAX_HOPS: Final = 8
"""The largest number of records in a probe that a switch can parse."""
PROBE_HEADER: Final = "!BBBBIQ"
"""The format of `probe_t` for Python's struct: version, capacity, used, reserved, id, time sent."""
PROBE_RECORD: Final = "!IHHIQ"
"""The format of `hop_t` for struct: node, ingress port, egress port, wait (ticks), time of arrival (us)."""

# Names of tables, and of the action profile, as in the P4 source
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

# For each table, the actions that Python code writes into entries
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
"""The action of the table `traffic_class` for each class. A full queue drops `data`, trims `trimmable`, and
keeps `high` and `control`. `high` overtakes `data` and `trimmable`; `control` overtakes all other classes."""
SWITCH_MAP: Final[dict[int, str]] = {
    TRIMMABLE_DSCP: "trimmable",
    RETX_DSCP: "trimmable",
    TRIMMED_DSCP: "high",
    TRIMMED_LAST_HOP_DSCP: "high",
    CONTROL_DSCP: "control",
}
"""The traffic class of each DSCP, unless the fabric sets another class. All other DSCPs are `data`."""
