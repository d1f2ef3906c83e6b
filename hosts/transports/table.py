"""The transports by name: the table that agents, perf, the verbs API, scenarios and the live page use.

A `Transport` is a kind (`mrclab.hosts.transports.kinds`) with options. It also has the routing and other
properties of the fabric, such as one plane, and its style on the live page. A scenario may use a transport
unchanged (``mrc: {}``) or set options (``mrc: {options: {max_active_evs: 4}}``). It may use a transport under
another name (``bgp: {use: ecmp+controller, detection: 3 s}``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mrclab.hosts.schemes.registry import find_object
from mrclab.hosts.transports.kinds import LOADED, Kind, Routing, find_kind
from mrclab.topologies.routed import Timers

GROUP = "mrclab.transports"
LosslessMode = Literal["", "pfc", "credit"]


@dataclass(frozen=True, slots=True)
class Look:
    """How the live page shows a transport."""

    label: str
    tone: str
    """Name of a colour in mrclab/live/static/live.css."""
    dash: tuple[int, ...] = ()
    """Lengths of the curve's dashes and gaps, pixels; empty: a solid line."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport as experiments compare it: a kind with options, and a fabric for it."""

    name: str
    kind: str
    """A name of `mrclab.hosts.transports.kinds.KINDS`, or ``module:KIND``."""
    routing: Routing
    meaning: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the channel."""
    one_plane: bool = False
    """If True, the fabric has one plane. Its links have the rate of all planes' links together."""
    loss: float = 0.0
    """Share of the frames to each NIC that are lost (0 to 1), during the whole run."""
    detection_ns: int | None = None
    """The time until a dead link is removed from routing: by the controller (ecmp), by BGP or BFD (frr);
    None: never."""
    faults: bool = True
    """If False, the scenario's faults do not happen. This gives a result without faults, for comparison."""
    lossless: LosslessMode = ""
    """How links avoid drops: by PFC or by credits. Empty: links drop packets that do not fit."""
    buffer_bytes: int = 0
    """For lossless links: the threshold of a PFC pause, or the bytes that credits cover. 0: a default that
    depends on the link's rate."""
    marks: Literal["", "uec", "dcqcn"] = ""
    """The rule by which switches mark packets: the rule of DCQCN, or the rule of UEC (also if empty)."""
    last_hop_marks: bool = False
    """If True, switches also mark packets on links to NICs."""
    look: Look | None = None
    """Style on the live page; None: the live page does not offer the transport."""

    @property
    def core(self) -> Kind:
        """The kind of the transport. Raise ValueError if there is no such kind."""
        return find_kind(self.kind)

    @property
    def only_simulated(self) -> str:
        """Return the feature of the transport that only virtual time supports; empty if there is none."""
        if self.lossless:
            return f"lossless links ({self.lossless})"
        if self.routing in LOADED:
            return f"{self.routing} routing"
        if self.marks == "dcqcn" or self.last_hop_marks:
            return "other marks than UEC's (marks, last_hop_marks)"
        return "routing by destination" if self.routing == "destination" else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the transport in JSON types. Keys for lossless links and marks are left out if empty."""
        out = asdict(self)
        del out["look"]
        for name in ("lossless", "buffer_bytes", "marks", "last_hop_marks"):
            if not out[name]:
                del out[name]
        return out

    @property
    def described(self) -> str:
        """Return `meaning`, and the time in which the routing notices a dead link."""
        if self.detection_ns is None:
            return self.meaning
        if self.routing != "frr":
            return f"{self.meaning}, {self.detection_ns / 1e6:g} ms after the cut at most"
        timers = Timers.detecting_in(self.detection_ns)
        if timers.bfd_interval_ms:
            return f"{self.meaning}, and BFD at {timers.bfd_multiplier} x {timers.bfd_interval_ms} ms"
        return (
            f"{self.meaning} with a hold time of {timers.hold_s} s (keepalives every {timers.keepalive_s} s)"
        )

    @property
    def channel_options(self) -> dict[str, Any]:
        """Return the options of the channel, including the additional options for the routing."""
        return {**self.core.by_routing.get(self.routing, {}), **self.options}


DEPLOYED: Mapping[str, Any] = {
    "congestion": "nscc",
    "timestamps": True,
    "transport_ack": True,
    "reverse_evs": "set",
    "max_active_evs": 128,
    "spare_evs_per_plane": 8,
}
"""MRC as deployed: congestion control NSCC, timestamps (TSETH), transport ACKs (0xD1), answers on EVs that
have lately worked, 128 EVs in use [P1 §2.1] and backup EVs [P1 §2.4]. The number of backup EVs, 32 on
four planes, is mrclab's choice. If a fabric has fewer paths, all EVs are in use, without backup EVs."""

MRC = DEPLOYED

OBLIVIOUS: Mapping[str, Any] = {**MRC, "ev_health": False}

QPS_16: Mapping[str, Any] = {"qps": 16}
SLOW_LINKS_TIMES: Mapping[str, Any] = {
    "ack_timeout_exponent": 15,
    "initial_rtt_ns": 5_000_000,
    "port_bps": 25_000_000,
}
"""For slow links: one packet takes a millisecond, so packets of a burst arrive a millisecond apart."""

SLOW_LINKS: Mapping[str, Any] = {**MRC, **SLOW_LINKS_TIMES}

NO_WINDOW: Mapping[str, Any] = {"window_bytes": 1 << 30}
"""Real NICs have no window. On lossless links only the links limit the bytes in flight."""

SLOW_WINDOW: Mapping[str, Any] = {"window_bytes": 24 * 4096}

LONG_WIRES: Mapping[str, Any] = {
    **MRC,
    "ack_timeout_exponent": 17,
    "initial_rtt_ns": 42_500_000,
    "port_bps": 25_000_000,
    "tail_probe_max_ns": 200_000_000,
    "endpoint_timeout_ns": 100_000_000,
}
"""For NICs of 4 x 25 Mbit/s and an RTT of 40 ms. 120 packets fit into one RTT, as at 400 Gbit/s and 10 us."""

LONG_WINDOW: Mapping[str, Any] = {"window_bytes": 136 * 4096, "timeout_exponent": 18}
"""The window is 10 % larger than the 120 packets of `LONG_WIRES`. The timeout of 1.1 s is 26 RTTs of
40 ms. In comparison: a short timeout of real NICs is 4 ms, which is 400 RTTs of 10 us."""

TRANSPORTS: Mapping[str, Transport] = {
    t.name: t
    for t in (
        Transport(
            "mrc",
            "mrc",
            "srv6",
            "MRC: sprays over all planes, retires paths that lose",
            MRC,
            look=Look("MRC", "blue"),
        ),
        Transport("mrc-ecmp", "mrc", "ecmp", "MRC whose EVs the switches hash, without segment lists", MRC),
        Transport("mrc-structured", "mrc", "structured", "MRC whose EVs the switches read bit by bit", MRC),
        Transport(
            "oblivious",
            "mrc",
            "srv6",
            "MRC's spray with EV health switched off: goes on using paths that lose",
            OBLIVIOUS,
            look=Look("spray without health", "pink", (2, 2)),
        ),
        Transport("mrc-slow-links", "mrc", "srv6", "MRC with timers for slow links", SLOW_LINKS),
        Transport(
            "oblivious-slow-links",
            "mrc",
            "srv6",
            "that, with EV health switched off",
            {**OBLIVIOUS, **SLOW_LINKS_TIMES},
        ),
        Transport("single-plane", "mrc", "srv6", "MRC with its bandwidth in one plane", MRC, one_plane=True),
        Transport(
            "rocev2",
            "rocev2",
            "ecmp",
            "RoCEv2: a path per queue pair, go-back-N, DCQCN, on one plane; routing never reacts",
            one_plane=True,
            look=Look("RoCEv2, one path", "orange", (7, 3)),
        ),
        Transport(
            "rocev2-pfc",
            "rocev2",
            "ecmp",
            "RoCEv2 without a window, on links with PFC: a full switch pauses what sends to it",
            NO_WINDOW,
            one_plane=True,
            lossless="pfc",
        ),
        Transport(
            "rocev2-credits",
            "rocev2",
            "destination",
            "that, on links with InfiniBand's credits, and one path for each destination",
            NO_WINDOW,
            one_plane=True,
            lossless="credit",
        ),
        Transport(
            "rocev2-slow-links",
            "rocev2",
            "ecmp",
            "RoCEv2 with a window that a slow link's queue can hold, for want of PFC",
            SLOW_WINDOW,
            one_plane=True,
        ),
        Transport(
            "rocev2-16qp-slow-links",
            "rocev2",
            "ecmp",
            "that, with 16 queue pairs to each peer",
            {**SLOW_WINDOW, **QPS_16},
            one_plane=True,
        ),
        Transport("mrc-long-wires", "mrc", "srv6", "MRC with timers for long wires", LONG_WIRES),
        Transport(
            "rocev2-long-wires",
            "rocev2",
            "ecmp",
            "RoCEv2 with as much in flight as long wires hold",
            LONG_WINDOW,
            one_plane=True,
        ),
        Transport(
            "rocev2-16qp-long-wires",
            "rocev2",
            "ecmp",
            "that, with 16 queue pairs to each peer",
            {**LONG_WINDOW, **QPS_16},
            one_plane=True,
        ),
        Transport(
            "rocev2-16qp",
            "rocev2",
            "ecmp",
            "RoCEv2 with 16 queue pairs to each peer",
            QPS_16,
            one_plane=True,
        ),
        Transport(
            "mrc-adaptive",
            "mrc",
            "adaptive",
            "MRC whose packets switches send to the uplink with the least load, whatever their EV",
            MRC,
        ),
        Transport(
            "rocev2-adaptive",
            "rocev2",
            "adaptive",
            "RoCEv2 whose packets switches send to the uplink with the least load, each by itself",
            one_plane=True,
        ),
        Transport(
            "rocev2-flowlet",
            "rocev2",
            "flowlet",
            "RoCEv2 whose flows take the uplink with the least load after every pause of a round trip",
            one_plane=True,
        ),
        Transport(
            "rocev2-failover",
            "rocev2-failover",
            "ecmp",
            "RoCEv2 striped over all ports, with NCCL's failover and recovery of ports",
        ),
        Transport(
            "ecmp+controller",
            "rocev2",
            "ecmp",
            "RoCEv2 on an ECMP fabric whose controller withdraws a dead link",
            one_plane=True,
            detection_ns=150_000_000,
        ),
        Transport(
            "tcp",
            "tcp",
            "ecmp",
            "Linux TCP over the ECMP fabric",
            one_plane=True,
            look=Look("TCP over ECMP", "purple", (10, 3, 2, 3)),
        ),
        Transport("mptcp", "mptcp", "ecmp", "Linux MPTCP, a subflow per plane, over the ECMP fabric"),
        Transport(
            "frr",
            "tcp",
            "frr",
            "Linux TCP over routers running FRRouting: eBGP",
            one_plane=True,
            detection_ns=150_000_000,
        ),
    )
}


def find_transport(name: str) -> Transport:
    """Return the transport of a name: a key of TRANSPORTS, ``module:TRANSPORT``, or an entry point's name.

    Raise ValueError, with a message of one line, if there is no such transport.
    """
    if name in TRANSPORTS:
        return TRANSPORTS[name]
    found = find_object(name, GROUP)
    if not isinstance(found, Transport):
        names = ", ".join(TRANSPORTS)
        raise ValueError(f"no transport '{name}': there are {names}, and module:TRANSPORT ('use' names it)")
    find_kind(found.kind)  # Raise ValueError early, before a run starts, if the kind is unknown.
    return found
