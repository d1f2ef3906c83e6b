"""The entries of a scenario's ``transports``: a name from the table of transports, and changed settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mrclab.hosts.transports.table import LosslessMode, Transport, find_transport
from mrclab.linux.errors import InputError
from mrclab.topologies.routed import Timers
from mrclab.topologies.yaml_model import Number, Size, Time, YamlModel, wrong


class TransportEntry(YamlModel):
    """One entry of ``transports``: a transport's name and the settings that differ from its defaults."""

    use: str = Field("", description="the transport's name, where it has another one here")
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the endpoints (docs/transports.md)"
    )
    routing: Literal["", "srv6", "ecmp", "structured", "destination", "adaptive", "flowlet", "frr"] = Field(
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

    marks: Literal["", "uec", "dcqcn"] = Field(
        "",
        description="when switches mark: by UEC's depths (also if not given), or by DCQCN's: from 1 us of "
        "queue on, 1 % at 40 us, everything beyond (target sim only)",
    )
    last_hop_marks: bool = Field(
        False, description="switches mark in front of NICs as well (target sim only)"
    )

    @model_validator(mode="after")
    def _use_is_known(self) -> Self:
        if self.use:
            try:
                find_transport(self.use)
            except ValueError as error:
                raise wrong(str(error), "use") from None
        return self

    def transport(self, name: str) -> Transport:
        """Return this entry's transport, called ``name``. Raise ValueError for a setting it cannot have."""
        base = find_transport(self.use or name)
        routing = self.routing or base.routing
        if routing not in base.core.routings:
            choices = ", ".join(base.core.routings)
            raise ValueError(f"{base.kind} does not work with routing {routing}: choose {choices}")
        lossless = self._lossless(base)
        if self.detection_ns is not None and routing in ("srv6", "structured"):
            raise ValueError(f"detection is for routing ecmp and frr: nothing routes in {routing}")
        if self.detection_ns is not None and routing == "frr":
            try:
                Timers.detecting_in(self.detection_ns)
            except ValueError as error:
                raise ValueError(f"detection: {error}") from None
        return replace(
            base,
            name=name,
            routing=routing,
            options={**base.options, **self.options},
            one_plane=base.one_plane if self.one_plane is None else self.one_plane,
            loss=self.loss,
            detection_ns=base.detection_ns if self.detection_ns is None else self.detection_ns,
            faults=self.faults,
            lossless=lossless,
            marks=self.marks or base.marks,
            last_hop_marks=self.last_hop_marks or base.last_hop_marks,
            buffer_bytes=self.buffer_bytes or (base.buffer_bytes if lossless else 0),
        )

    def _lossless(self, base: Transport) -> LosslessMode:
        """Return how links avoid drops; "" if links drop packets. Raise ValueError for a wrong setting."""
        if self.lossless == "drops":
            found: LosslessMode = ""
        else:
            found = self.lossless or base.lossless
        if found and not base.core.has_nic:
            raise ValueError(f"lossless is for mrc and rocev2: {base.name} uses the kernel's NIC")
        if self.buffer_bytes and not found:
            raise ValueError("buffer is that of lossless links: give lossless, too")
        return found


LIVE_ONLY = ("mesh",)
"""Workloads that the simulator cannot run."""


def require_simulated(kind: str, transports: Iterable[Transport]) -> None:
    """Raise InputError if the simulator does not support the kind of workload or a transport."""
    if kind == "program":
        raise InputError(
            "a program runs on a live target only: record it there (mrclab exec --record FILE) and replay "
            "FILE here by `kind: recorded` (docs/programs.md)",
            where="workload.kind",
        )
    if kind in LIVE_ONLY:
        raise InputError(f"a {kind} needs a live target", where="workload.kind")
    for transport in transports:
        require_simulated_transport(transport)


def require_simulated_transport(transport: Transport) -> None:
    """Raise InputError if the transport needs the Linux kernel's TCP or routers."""
    if not transport.core.has_nic or transport.routing == "frr":
        raise InputError(
            f"{transport.name} needs Linux's own TCP or routers: leave it out with --target sim, "
            f"by --set transports.{transport.name}=false",
            where="transports",
        )
