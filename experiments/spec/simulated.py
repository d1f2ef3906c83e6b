"""What a scenario may ask of the target `sim`: everything but what only a kernel or a live fabric has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from experiments.spec.transports import Transport
from hosts.collectives.transports import WITH_NIC
from linux.errors import InputError

LIVE_ONLY: Final = ("mesh",)
"""Workloads that are programs of their own on live hosts."""


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
