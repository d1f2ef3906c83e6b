"""The evidence of one repetition of a scenario. All measurements use this evidence only."""

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
    """A change of routes: when it was decided, and when the last switch had made it (monotonic ns)."""

    noticed_ns: int
    done_ns: int


@dataclass(frozen=True)
class Collected:
    """The evidence from a workload's processes. `Evidence` describes the fields."""

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
    """All evidence of a repetition. Times are CLOCK_MONOTONIC ns, except those in the captures.

    A rank or an agent is identified by its index into ``hosts``. A host may occur more than once.
    """

    transport: Transport
    number: int
    """The repetition's number, from 0."""
    seed: int
    fabric: Fabric
    hosts: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    """Senders and receivers of data. In a workload of flows, flow i is pair i."""
    workload: Mapping[str, Any]
    """The workload's ``kind`` and parameters in JSON types, as in the result's ``parameters.workload``."""
    measure_ns: int
    end_ns: int
    length_ns: int | None = None
    """The planned length of the measurement. If None, the measurement lasts until the work is done."""
    series_ns: int = 1_000_000
    """The width of a bin in the series of delivered bytes."""
    warmup_ns: int = 0
    in_flight_ns: int = IN_FLIGHT_NS
    """The longest time of a packet from one host to another."""
    flow_bytes: tuple[int, ...] = ()
    """The size of a message of each flow, if the workload consists of flows."""
    faults: tuple[FaultRecord, ...] = ()
    """The faults in order of time."""
    captures: Mapping[str, Path] = field(default_factory=dict)
    """The pcap file of each host; empty if nothing was captured."""
    recording: Recording | None = None
    event_logs: Mapping[str, Path] = field(default_factory=dict)
    """The event log of each host (docs/event-log.md). Ranks have no log; their events are in ``samples``."""
    samples: tuple[Sample, ...] = ()
    """The samples of each rank; empty for agents."""
    route_changes: tuple[RouteChange, ...] = ()
    loads: tuple[Load, ...] = ()
    """One load for the whole repetition or, with faults in sequence, one load for each fault."""
    wanted: int | None = None
    """The requested number of faults in sequence.

    If the machine was too slow in some trials, more faults were made. These trials are set aside.
    """
    rehearsals: int = 0
    """The number of faults at the beginning that only served to adapt the rate. These faults do not count."""
    links: Mapping[str, Any] = field(default_factory=dict)
    """The link meter's data: ``start_us``, ``bin_us``, and ``bytes`` by link."""
    flow_control: Mapping[str, Any] = field(default_factory=dict)
    """Data about lossless links: their kind, and which links stopped, how often and for how long."""
    counters: Mapping[str, int] = field(default_factory=dict)
    bytes_delivered: int = 0
    problem: str | None = None
    """An error in the delivered data, or None."""
    failure: str | None = None
    """Why the repetition failed; None if it did not fail."""
    interrupted: str | None = None
    """Why the run was ended during the repetition; None if the run was not ended early."""
    notes: tuple[str, ...] = ()
    """Notes for the reader of the report."""
    failures: tuple[str, ...] = ()
    """Problems that the run itself found. Such problems make the run invalid."""
    data: str | None = None
    """The repetition's directory, relative to the directory of the result."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More data in JSON types, such as streams, memory and totals. This data is copied to the result."""
