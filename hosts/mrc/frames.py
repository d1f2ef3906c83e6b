"""Frames around MRC packets: Ethernet, outer IPv6 (uSID container), inner IPv6, UDP [P1 §2.2, Fig 2-3].

The entropy value (EV) of a packet's path travels in the UDP source port and the flow labels. Both flow labels
carry the same half of it.
"""

from __future__ import annotations

from typing import NamedTuple

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.wire import join_ev, split_ev
from mrclab.hosts.rdma.frames import FlowCache, build_prefix
from mrclab.hosts.rdma.headers import BTH_OFFSET, PLAIN_BTH_OFFSET
from mrclab.hosts.rdma.paths import Path, PlanePaths


class FrameOptions(NamedTuple):
    """The options of an endpoint that shape every frame."""

    udp_port: int
    hop_limit: int
    ev_low_half_in_udp: bool
    ev_in_flow_label: bool = True


def frame_options(config: MrcConfig) -> FrameOptions:
    """Return the options of a configuration that shape frames."""
    reading = config.reading
    return FrameOptions(
        reading.udp_port, config.hop_limit, reading.ev_low_half_in_udp, config.ev_in_flow_label
    )


def prefix(
    plane: PlanePaths, path: Path, options: FrameOptions, tclass: int, udp_length: int
) -> tuple[bytes, int]:
    """Return the 102 bytes before the BTH and the value that the ICRC starts with.

    `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    if options.ev_in_flow_label:
        source, label = split_ev(path.ev, low_half_in_udp=options.ev_low_half_in_udp)
    else:
        source, label = path.ev, 0
    return build_prefix(
        plane,
        path.outer_dst,
        tclass=tclass,
        flow_label=label,
        source=source,
        udp_port=options.udp_port,
        hop_limit=options.hop_limit,
        udp_length=udp_length,
    )


def with_room_for_outer(view: memoryview) -> memoryview:
    """Return a frame without an outer header as one whose headers from the BTH on stand behind such a header.

    So the rest of the core has one place for them. The bytes before the BTH are not to be read.
    """
    return memoryview(bytes(BTH_OFFSET - PLAIN_BTH_OFFSET) + view)


class MrcFlowCache(FlowCache):
    """The flows of arriving MRC frames, each with the EV that it carries."""

    def __init__(
        self,
        options: FrameOptions,
        udp_ports: tuple[int, ...],
        trimmed_dscps: tuple[int, ...] = (),
        *,
        needs_outer: bool = True,
    ) -> None:
        super().__init__(udp_ports, needs_outer=needs_outer, trimmed_dscps=trimmed_dscps)
        self._options = options

    def entropy(self, source: int, flow_label: int) -> int:
        """Return the EV: of 32 bits from both fields, or of 16 bits from the UDP source port alone."""
        if self._options.ev_in_flow_label:
            return join_ev(source, flow_label & 0xFFFF, low_half_in_udp=self._options.ev_low_half_in_udp)
        return source
