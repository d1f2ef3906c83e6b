"""A scene to simulate: a fabric, its transports and their traffic. Check a scene that a page sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from mrclab.hosts.options import FAST_BPS
from mrclab.hosts.roce.lanes import FailoverConfig
from mrclab.hosts.transports import TRANSPORTS, Kind, Look
from mrclab.linux.errors import InputError
from mrclab.live.describe import pairs_of
from mrclab.topologies import Fabric, LinkProfile
from mrclab.topologies.build import build, spec_of

PATTERNS: Final = ("stream", "permutation", "incast")
LINK_BPS: Final = 100_000_000_000
HOST_DELAY_NS, FABRIC_DELAY_NS = 500, 725
"""The link delays, ns, of the fabric that `faster` returns. The topology paper-c has the same delays."""
MIN_RATE_BPS, MAX_RATE_BPS = 100_000_000, 800_000_000_000
ROCEV2_TIMEOUT_EXPONENT: Final = 6
"""RoCEv2's timeout: 262 us (4.096 us * 2**6), some 40 RTTs. perftest's 67 ms would be too long to watch."""
SHORTER: Final = 256
"""The factor by which RoCEv2's timeout and NCCL's failover times are shorter than the defaults."""
FAILOVER: Mapping[str, Any] = {
    "timeout_exponent": ROCEV2_TIMEOUT_EXPONENT,
    **{
        name: getattr(FailoverConfig(), name) // SHORTER
        for name in ("probe_delay_ns", "recovery_start_ns", "alive_interval_ns", "alive_timeout_ns")
    },
}
MOST_HOSTS: Final = 64


@dataclass(frozen=True, slots=True)
class Offered:
    """A transport that the page offers: label and colour, name in `mrclab.hosts.transports`, options."""

    look: Look
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    one_path: bool = False
    """If true, each flow uses one path, chosen by a hash as with ECMP, instead of all paths."""


WINDOW: Mapping[str, Any] = {"congestion": "aimd", "trim": False}
"""The options of a flow with a congestion window. Full queues drop the flow's packets and trim no packet."""


def _as_live(name: str, options: Mapping[str, Any] | None = None) -> Offered:
    look = TRANSPORTS[name].look
    assert look is not None
    return Offered(look, name, options or {})


OFFERED: Mapping[str, Offered] = {
    "mrc": _as_live("mrc"),
    "rocev2": _as_live("rocev2", {"timeout_exponent": ROCEV2_TIMEOUT_EXPONENT}),
    "rocev2-failover": Offered(Look("RoCEv2, NCCL failover", "purple", (12, 4)), "rocev2-failover", FAILOVER),
    "oblivious": _as_live("oblivious"),
    "two-choices": Offered(Look("MRC, two choices", "teal", (4, 2)), "mrc", {"path_policy": "two-choices"}),
    "reps": Offered(Look("MRC, REPS", "gold", (9, 2, 2, 2)), "mrc", {"path_policy": "reps"}),
    "ecmp-window": Offered(
        Look("TCP-like, one ECMP path", "brown", (2, 4)), "oblivious", WINDOW, one_path=True
    ),
}
"""The transports of the page. The simulator has no model of the kernel's TCP, so ``ecmp-window`` stands for
TCP: one path, a window that is halved after a loss (RFC 5681), and fast retransmit from SACKs."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A fabric's name and its traffic, with the same fields as `mrclab.live.plan.TrafficPlan`."""

    fabric: str = "lab"
    transports: tuple[str, ...] = ("mrc", "rocev2")
    pattern: str = "stream"
    rate_bps: int = 60_000_000_000
    message_bytes: int = 32768
    seed: int = 1

    def pairs(self, fabric: Fabric) -> tuple[tuple[str, str], ...]:
        """Return (source, destination) of each flow of a transport."""
        return pairs_of(fabric, self.pattern, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the scene in JSON types."""
        return {**asdict(self), "transports": list(self.transports)}


def scene_of(data: object, usual: Scene = Scene()) -> Scene:
    """Return the scene that a page describes. A missing field has the value of ``usual``.

    Raise InputError, with a message of one line, if a field is unknown or a value is not valid.
    """
    if not isinstance(data, Mapping):
        raise InputError("a scene is a JSON object")
    known = Scene.__dataclass_fields__
    extra = set(data) - set(known) - {"payload_bytes"}
    if extra:
        raise InputError(f"a scene has no '{min(extra)}': it has {', '.join(known)}")
    fields = {name: value for name, value in data.items() if name in known}
    names = fields.get("transports", usual.transports)
    if (
        not isinstance(names, list | tuple)
        or not 1 <= len(names) <= 4
        or len(set(map(str, names))) < len(names)
    ):
        raise InputError("transports are one to four different names")
    for name in names:
        if name not in OFFERED:
            raise InputError(f"no transport '{name}' here: choose {', '.join(OFFERED)}")
    fields["transports"] = tuple(names)
    found = replace(usual, **fields)
    if found.pattern not in PATTERNS:
        raise InputError(f"no pattern '{found.pattern}' here: choose {', '.join(PATTERNS)}")
    for name, low, high in (
        ("rate_bps", MIN_RATE_BPS, MAX_RATE_BPS),
        ("message_bytes", 1024, 1 << 20),
        ("seed", 0, 1 << 31),
    ):
        value = getattr(found, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(f"{name} is a whole number from {low} to {high}, not {value}")
    if not isinstance(found.fabric, str):
        raise InputError("fabric is the name of a topology")
    return found


def faster(fabric: Fabric) -> Fabric:
    """Return the fabric with data-centre links: if a link is below FAST_BPS, all links get 100 Gbit/s.

    Raise InputError if the fabric has too many hosts to draw.
    """
    if len(fabric.hosts) > MOST_HOSTS:
        raise InputError(
            f"{fabric.name} has {len(fabric.hosts)} hosts: choose a topology of at most {MOST_HOSTS}"
        )
    if all(link.profile.rate_bps >= FAST_BPS for link in fabric.links):
        return fabric
    spec = spec_of(fabric)
    spec = replace(
        spec,
        host_links=LinkProfile(LINK_BPS, HOST_DELAY_NS, spec.host_links.mtu_bytes),
        fabric_links=LinkProfile(LINK_BPS, FABRIC_DELAY_NS, spec.fabric_links.mtu_bytes),
        exceptions=tuple(entry for entry in spec.exceptions if entry.absent),
    )
    return build(spec, fabric.name)


def core_of(offered: Offered) -> tuple[Kind, dict[str, Any]]:
    """Return the kind of endpoint of a transport, and its options."""
    base = TRANSPORTS[offered.name]
    return base.core, {**base.options, **offered.options}
