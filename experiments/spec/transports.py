"""The transports and fabrics that scenarios compare, by name.

A ``Transport`` defines which kind of channel the ranks open (hosts/collectives/transports.py), with which
options, how the fabric forwards, and how the fabric differs from the scenario's. A scenario may take one as
it is (``mrc: {}``), set options on top (``mrc: {options: {max_active_evs: 4}}``), and use one under another
name (``bgp: {use: ecmp+controller, detection: 3 s}``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mrclab.hosts.collectives.transports import WITH_NIC
from mrclab.hosts.transports import TRANSPORTS
from mrclab.linux.errors import InputError
from mrclab.topologies.routed import Timers
from mrclab.topologies.yaml_model import Number, Size, Time, YamlModel, wrong

Routing = Literal["srv6", "ecmp", "structured", "destination", "frr"]
ROUTINGS: tuple[Routing, ...] = ("srv6", "ecmp", "structured", "destination", "frr")
LosslessMode = Literal["", "pfc", "credit"]


@dataclass(frozen=True, slots=True)
class Transport:
    """One column of a comparison."""

    name: str
    kind: str
    """Of the channel: mrc, rocev2, tcp, mptcp."""
    routing: Routing
    meaning: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the channel."""
    one_plane: bool = False
    """The same NIC bandwidth in one plane: planes become one, and its links as fast as all together."""
    loss: float = 0.0
    """The share of frames lost on the way into every NIC, throughout."""
    detection_ns: int | None = None
    """The time until a dead link is withdrawn: by the controller (routing ecmp), by BGP or BFD (frr); None:
    never."""
    faults: bool = True
    """False: it meets none of the scenario's faults, as a control."""
    lossless: LosslessMode = ""
    """How links avoid drops: by PFC, by credits; empty: they drop packets that do not fit."""
    buffer_bytes: int = 0
    """Of lossless links: the threshold of a pause, or the bytes that credits cover; 0: by the link's
    speed."""

    @property
    def only_simulated(self) -> str:
        """The feature of it that only virtual time has; empty: none."""
        if self.lossless:
            return f"lossless links ({self.lossless})"
        return "routing by destination" if self.routing == "destination" else ""

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON types, without empty keys that are younger than the form."""
        out = asdict(self)
        for name in ("lossless", "buffer_bytes"):
            if not out[name]:
                del out[name]
        return out

    @property
    def described(self) -> str:
        """Its meaning, and how soon its routing notices a dead link."""
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
        """The options of the channel: without SRv6 MRC and RoCEv2 leave the path to switches."""
        if self.kind == "rocev2":
            return {"encapsulation": "srv6" if self.routing == "srv6" else "plain", **self.options}
        if self.kind == "mrc" and self.routing in ("ecmp", "structured"):
            return {"ev_mode": self.routing, **self.options}
        return dict(self.options)


MRC: Mapping[str, Any] = TRANSPORTS["mrc"].options

SLOW_LINKS_TIMES: Mapping[str, Any] = {
    "ack_timeout_exponent": 15,
    "initial_rtt_ns": 5_000_000,
    "port_bps": 25_000_000,
}
"""For links on which one packet takes a millisecond, so that packets of one burst arrive that far apart."""

SLOW_LINKS: Mapping[str, Any] = {**MRC, **SLOW_LINKS_TIMES}

NO_WINDOW: Mapping[str, Any] = {"window_bytes": 1 << 30}
"""NICs have none: on lossless links only the links hold them back."""

SLOW_WINDOW: Mapping[str, Any] = {"window_bytes": 24 * 4096}

LONG_WIRES: Mapping[str, Any] = {
    **MRC,
    "ack_timeout_exponent": 19,
    "initial_rtt_ns": 170_000_000,
    "port_bps": 6_250_000,
    "tail_probe_max_ns": 800_000_000,
    "endpoint_timeout_ns": 400_000_000,
}
"""For a round trip of 160 ms on NICs of 4 times 6.25 Mbit/s: 120 packets, as on 400 Gbit/s with 10 us."""

LONG_WINDOW: Mapping[str, Any] = {"window_bytes": 136 * 4096, "timeout_exponent": 20}
"""A tenth more than that product. The timeout, 4.3 s, is 26 such round trips; 4 ms, short for a NIC, are 400
of 10 us."""

NAMED: dict[str, Transport] = {
    t.name: t
    for t in (
        Transport("mrc", "mrc", "srv6", "MRC: sprays over all planes, retires paths that lose", MRC),
        Transport("mrc-ecmp", "mrc", "ecmp", "MRC whose EVs the switches hash, without segment lists", MRC),
        Transport("mrc-structured", "mrc", "structured", "MRC whose EVs the switches read bit by bit", MRC),
        Transport(
            "oblivious",
            "mrc",
            "srv6",
            "MRC's spray with EV health switched off: goes on using paths that lose",
            TRANSPORTS["oblivious"].options,
        ),
        Transport("mrc-slow-links", "mrc", "srv6", "MRC with timers for slow links", SLOW_LINKS),
        Transport(
            "oblivious-slow-links",
            "mrc",
            "srv6",
            "that, with EV health switched off",
            {**TRANSPORTS["oblivious"].options, **SLOW_LINKS_TIMES},
        ),
        Transport("single-plane", "mrc", "srv6", "MRC with its bandwidth in one plane", MRC, one_plane=True),
        Transport(
            "rocev2",
            "rocev2",
            "ecmp",
            "RoCEv2: a path per queue pair, go-back-N, DCQCN, on one plane; routing never reacts",
            one_plane=True,
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
            {**SLOW_WINDOW, **TRANSPORTS["rocev2-16qp"].options},
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
            {**LONG_WINDOW, **TRANSPORTS["rocev2-16qp"].options},
            one_plane=True,
        ),
        Transport(
            "rocev2-16qp",
            "rocev2",
            "ecmp",
            "RoCEv2 with 16 queue pairs to each peer",
            TRANSPORTS["rocev2-16qp"].options,
            one_plane=True,
        ),
        Transport(
            "ecmp+controller",
            "rocev2",
            "ecmp",
            "RoCEv2 on an ECMP fabric whose controller withdraws a dead link",
            one_plane=True,
            detection_ns=150_000_000,
        ),
        Transport("tcp", "tcp", "ecmp", "Linux TCP over the ECMP fabric", one_plane=True),
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


class TransportEntry(YamlModel):
    """What a scenario says about one transport: which one it uses, and what differs."""

    use: str = Field("", description="the transport's name, where it has another one here")
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the endpoints (docs/transports.md)"
    )
    routing: Literal["", "srv6", "ecmp", "structured", "destination", "frr"] = Field(
        "", description="how the fabric forwards"
    )
    detection_ns: Annotated[int, Time()] | None = Field(
        None,
        alias="detection",
        description="after how long a dead link is withdrawn: by the controller (routing ecmp), "
        "by BGP or BFD (frr)",
    )
    loss: Annotated[float, Number(0, 0.9)] = Field(
        0.0, description="share of frames lost on the way into every NIC, throughout"
    )
    one_plane: bool | None = Field(None, description="the same bandwidth in one plane")
    faults: bool = Field(True, description="false: a control, which meets none of the scenario's faults")
    lossless: Literal["", "drops", "pfc", "credit"] = Field(
        "",
        description="what a link does where no buffer is left: drops, or stops its sender by pfc or credit "
        "(target sim only; docs/simulator.md)",
    )
    buffer_bytes: Annotated[int, Size(high=1 << 30)] = Field(
        0,
        alias="buffer",
        description="of lossless links: the threshold of a pause, or what credits are for; "
        "0: by the link's speed",
    )

    @model_validator(mode="after")
    def _use_is_known(self) -> Self:
        if self.use and self.use not in NAMED:
            raise wrong(unknown(self.use), "use")
        return self

    def transport(self, name: str) -> Transport:
        """Return the transport of this entry, which the scenario calls ``name``. Raise ValueError."""
        used = self.use or name
        if used not in NAMED:
            raise ValueError(unknown(used))
        base = NAMED[used]
        routing = self.routing or base.routing
        if routing == "destination" and base.kind != "rocev2":
            raise ValueError("routing destination is for rocev2: MRC's paths are its sender's choice")
        lossless = self._lossless(base)
        if self.detection_ns is not None and routing in ("srv6", "structured"):
            raise ValueError(f"detection is for routing ecmp and frr: nothing routes in {routing}")
        if routing == "structured" and base.kind != "mrc":
            raise ValueError("routing structured is for mrc: only its frames have EVs")
        if self.detection_ns is not None and routing == "frr":
            try:
                Timers.detecting_in(self.detection_ns)
            except ValueError as error:
                raise ValueError(f"detection: {error}") from None
        return Transport(
            name=name,
            kind=base.kind,
            routing=routing,
            meaning=base.meaning,
            options={**base.options, **self.options},
            one_plane=base.one_plane if self.one_plane is None else self.one_plane,
            loss=self.loss,
            detection_ns=base.detection_ns if self.detection_ns is None else self.detection_ns,
            faults=self.faults,
            lossless=lossless,
            buffer_bytes=self.buffer_bytes or (base.buffer_bytes if lossless else 0),
        )

    def _lossless(self, base: Transport) -> LosslessMode:
        """Return how links avoid drops. Raise ValueError."""
        if self.lossless == "drops":
            found: LosslessMode = ""
        else:
            found = self.lossless or base.lossless
        if found and base.kind not in ("mrc", "rocev2"):
            raise ValueError(f"lossless is for mrc and rocev2: {base.name} uses the kernel's NIC")
        if self.buffer_bytes and not found:
            raise ValueError("buffer is that of lossless links: give lossless, too")
        return found


def unknown(name: str) -> str:
    """Return the message about a transport that does not exist."""
    return f"no transport '{name}': there are {', '.join(NAMED)} ('use' gives one another name)"


LIVE_ONLY = ("mesh",)
"""Workloads that are separate programs on live hosts."""


def require_simulated(kind: str, transports: Iterable[Transport]) -> None:
    """Raise InputError for a kind of workload, or a transport, that virtual time does not have."""
    if kind in LIVE_ONLY:
        raise InputError(f"a {kind} needs a live target", where="workload.kind")
    for transport in transports:
        require_simulated_transport(transport)


def require_simulated_transport(transport: Transport) -> None:
    """Raise InputError for a transport that only a kernel has."""
    if transport.kind not in WITH_NIC or transport.routing == "frr":
        raise InputError(
            f"{transport.name} needs Linux's own TCP or routers: leave it out with --target sim, "
            f"by --set transports.{transport.name}=false",
            where="transports",
        )
