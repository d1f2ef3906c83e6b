"""The faults that a transport meets: on a fabric in one plane the same places, in plane 0."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mrclab.experiments.spec.faults import Drain, FaultSpec, RandomFaults, SequentialFaults, TimedFault
from mrclab.hosts.transports.table import Transport


def place_in_one_plane(place: str) -> str:
    """Return the name of a place, or a pattern, with every plane read as plane 0."""
    place = re.sub(r"\bp(\d+|\*|\?|\[[^\]]*\])-t", "p0-t", place)
    place = re.sub(r"^p(\d+|\*|\?|\[[^\]]*\])$", "p0", place)
    return re.sub(r"^(h[^:]*)-eth.*$", r"\1-eth0", place)


def faults_met(specs: Sequence[FaultSpec], transport: Transport) -> tuple[FaultSpec, ...]:
    """Return the faults of a scenario as a transport meets them: none if it is a control.

    Faults for transports over planes only (or in one plane only) are left out for the others.
    """
    if not transport.faults:
        return ()
    other = "planes" if transport.one_plane else "one-plane"
    met = tuple(spec for spec in specs if getattr(spec, "over", "any") != other)
    return specs_in_one_plane(met) if transport.one_plane else met


def specs_in_one_plane(specs: Sequence[FaultSpec]) -> tuple[FaultSpec, ...]:
    """Return the same faults for a fabric of one plane; places that are then the same are broken once."""
    return tuple(spec if isinstance(spec, RandomFaults) else _in_one_plane(spec) for spec in specs)


def _in_one_plane(spec: TimedFault | SequentialFaults | Drain) -> FaultSpec:
    where = tuple(dict.fromkeys(place_in_one_plane(place) for place in spec.where))
    return spec.model_copy(update={"where": where})
