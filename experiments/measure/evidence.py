"""The evidence of one repetition of a scenario: the input of every measurement, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.recording import Recording
from mrclab.experiments.measure.recovery import IN_FLIGHT_NS
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric

Sample = Mapping[str, npt.NDArray[np.int64]]


class RouteChange(NamedTuple):
    """One change of routes: when it was decided, and when every switch concerned had it (monotonic ns)."""

    noticed_ns: int
    done_ns: int


@dataclass(frozen=True)
class Collected:
    """The evidence of a workload's processes; see `Evidence` for the fields."""

    samples: tuple[Sample, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    bytes_delivered: int = 0
    problem: str | None = None
    failure: str | None = None
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    event_logs: Mapping[str, Path] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """All evidence of a repetition. Times are CLOCK_MONOTONIC ns, except the captures' own stamps.

    A rank or an agent is identified by its index into ``hosts``; a host may occur more than once.
    """

    transport: Transport
    number: int
    """Of the repetition, from 0."""
    seed: int
    fabric: Fabric
    hosts: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    """Sender and receiver of data. In a workload of flows, flow i is pair i."""
    workload: Mapping[str, Any]
    """``kind`` and parameters in JSON types, units in the names: ``parameters.workload`` of the result."""
    measure_ns: int
    end_ns: int
    length_ns: int | None = None
    """How long the measurement was to last; None: until the work was done."""
    series_ns: int = 1_000_000
    """The width of the bins of the delivered series."""
    warmup_ns: int = 0
    in_flight_ns: int = IN_FLIGHT_NS
    """The longest that a packet is on its way from one host to another."""
    flow_bytes: tuple[int, ...] = ()
    """Bytes of a message of each flow, if the workload consists of flows."""
    faults: tuple[FaultRecord, ...] = ()
    """In order of time."""
    captures: Mapping[str, Path] = field(default_factory=dict)
    """Host to pcap file; empty if nothing was captured."""
    recording: Recording | None = None
    event_logs: Mapping[str, Path] = field(default_factory=dict)
    """Host to event log (docs/event-log.md); ranks have none and put their events into ``samples``."""
    samples: tuple[Sample, ...] = ()
    """Of each rank; empty if agents carried the workload."""
    route_changes: tuple[RouteChange, ...] = ()
    loads: tuple[Load, ...] = ()
    """Of the whole repetition (one entry), or of each fault in sequence (as many as ``faults``)."""
    wanted: int | None = None
    """The requested number of faults in sequence.

    If the machine did not keep up, more were made: the disturbed ones are set aside, and the others count.
    """
    rehearsals: int = 0
    """The first so many faults were made to settle the rate, and do not count."""
    links: Mapping[str, Any] = field(default_factory=dict)
    """Of the link meter: ``start_us``, ``bin_us``, and ``bytes`` by link."""
    flow_control: Mapping[str, Any] = field(default_factory=dict)
    """Of lossless links: their kind, and which of them stopped, how often and for how long."""
    counters: Mapping[str, int] = field(default_factory=dict)
    bytes_delivered: int = 0
    problem: str | None = None
    """An error in the data; None: the data are right."""
    failure: str | None = None
    """Why the repetition did not come to its end; None: it did."""
    interrupted: str | None = None
    """Why the run was ended in the middle of the repetition; None: it was not."""
    notes: tuple[str, ...] = ()
    """Notes for the reader."""
    failures: tuple[str, ...] = ()
    """Why the figures are not to be trusted, as far as the run itself noticed."""
    data: str | None = None
    """The repetition's directory, relative to that of the result."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More in JSON types, which goes into the result as it is: streams, memory, totals."""
