"""The settings that the two ends of a queue pair agree on before it carries data."""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.rdma.paths import PortAddress


@dataclass(frozen=True, slots=True)
class QpAttributes:
    """The values that the two ends exchange before a QP carries data [SPEC §10, Table 10-1]."""

    qpn: int
    psn: int
    """First PSN that this end will send, 24 bits."""
    mtu_bytes: int
    """Largest payload of one packet that this end accepts."""
    mpr: int
    """Receive window of this end in PSNs."""
    udp_port: int
    """UDP destination port of the frames that this end sends."""
    ports: tuple[PortAddress, ...]
    trim_nack: bool = True
    """True: this end answers trimmed packets with NACKs."""
    max_wimm: int = 32
    """WRITE_IMMs that may be in flight towards this end."""
    dynamic_mpr: bool = False
    """True: this end announces its receive window in SACKs, and obeys the other end's announced window."""
    transport_ack: bool = False
    """True: this end sends transport ACKs and waits for the peer's transport ACKs. Both ends must do so."""
    service_time: bool = False
    """True: this end measures the time between a packet's arrival and the answer. It adds the time to the
    answer's timestamp, and the peer subtracts the time from the RTT. Both ends must offer this option."""

    @property
    def kind(self) -> str:
        """The kind of transport. This is a property, because mypyc would make a ClassVar a field."""
        return "mrc"

    @classmethod
    def of(cls, config: MrcConfig, qpn: int, psn: int, ports: tuple[PortAddress, ...]) -> QpAttributes:
        """Return the attributes of a local queue pair, from the endpoint's options."""
        return cls(
            qpn,
            psn,
            config.mtu_bytes,
            config.mpr,
            config.reading.udp_port,
            ports,
            config.trim,
            config.max_wimm,
            config.dynamic_mpr,
            config.transport_ack,
            config.reading.service_time,
        )


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of a connected queue pair, which both ends support."""

    remote_qpn: int
    remote_psn: int
    """First PSN that the peer will send, 24 bits."""
    mtu_bytes: int
    """Largest payload of one packet to the peer."""
    mpr: int
    """Largest number of sent PSNs that wait for the peer's acknowledgement."""
    max_wimm: int
    """WRITE_IMMs that may be in flight towards the peer."""
    trim_nack: bool
    """The peer answers trimmed packets with NACKs."""
    dynamic_mpr: bool
    transport_ack: bool
    service_time: bool

    @classmethod
    def agree(cls, config: MrcConfig, remote: QpAttributes) -> Connection:
        """Return the settings that follow from the local options and the peer's attributes."""
        return cls(
            remote.qpn,
            remote.psn,
            min(remote.mtu_bytes, config.mtu_bytes),
            min(remote.mpr, config.mpr),
            remote.max_wimm,
            remote.trim_nack,
            config.dynamic_mpr and remote.dynamic_mpr,
            config.transport_ack and remote.transport_ack,
            config.reading.service_time and remote.service_time,
        )
