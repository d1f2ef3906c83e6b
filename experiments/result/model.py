"""The form of result.json as typed models, from which its JSON schema is made.

Results of all scenarios have this form. Names of times end with the unit. Time stamps are CLOCK_MONOTONIC
ns. A missing time is null, and a field with the reason is next to it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "mrclab.result/2"
TIMES = ("first_loss_us", "detected_us", "rerouted_us", "recovered_us", "recovered_since_loss_us")
"""The names of a fault's times, in the order of tables and pages."""
EXPECTED = "the scenario's expectations"
"""The ``source`` of checks that come from the scenario's own expectations."""


class Model(BaseModel):
    """The base class of all parts of a result. Unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(Model):
    """One fault, with time stamps before and after the calls that make and repair it.

    The time stamps of a call that was not made are null.
    """

    kind: str
    where: str
    t_before_ns: int
    t_after_ns: int
    restore_before_ns: int | None = None
    restore_after_ns: int | None = None
    direction: str = "both"
    params: dict[str, Any] = Field(default_factory=dict)
    at_us: float | None = None
    """The time from the start of the measurement to the fault."""


class Gaps(Model):
    """Times between two completions of messages, us, from the agents' logs."""

    source: str
    longest: float | None
    before_p50: float | None
    before_p99: float | None
    before_max: float | None


class TrialCheck(Model):
    """A comparison of an endpoint's reports with the captures. ``ok`` is null if there are no reports."""

    name: str
    ok: bool | None
    detail: str


class Trial(Model):
    """One fault in one repetition of one transport. ``felt``: the fault lost packets (null: unknown)."""

    transport: str
    repetition: int
    trial: int
    fault: Fault
    felt: bool | None
    rule: str
    first_loss_us: float | None
    first_loss_error_us: float | None = None
    first_loss_rtts: float | None = None
    first_loss_reason: str | None = None
    detected_us: float | None
    detected_error_us: float | None = None
    detected_rtts: float | None = None
    detected_reason: str | None = None
    rerouted_us: float | None
    rerouted_error_us: float | None = None
    rerouted_rtts: float | None = None
    rerouted_reason: str | None = None
    recovered_us: float | None
    recovered_error_us: float | None = None
    recovered_rtts: float | None = None
    recovered_reason: str | None = None
    recovered_since_loss_us: float | None
    first_rtx_us: float | None = None
    rtt_us: float | None
    rtt_p99_us: float | None = None
    rtt_samples: int | None = None
    in_flight_us: float | None = None
    """The assumed longest travel time of a packet, us."""
    packets_per_s: int | None = None
    """The rate of data packets. The time from the fault to the first loss depends on it."""
    unnoticed_us: float | None = None
    """The longest tolerated stop of an endpoint process. Such a stop may make the trial's times longer."""
    packets_sent: int | None = None
    lost_packets: int | None
    lost_in_flight: int | None = None
    lost_elsewhere: int | None = None
    retransmitted_packets: int | None
    spurious_retransmissions: int | None = None
    bytes_delivered: int | None
    integrity: str
    evs_used: int | None = None
    paths_used: int | None = None
    broken_paths: int | None = None
    gap_us: float | None = None
    """The longest time between two messages of a flow after the fault: the maximum over all flows."""
    app_gap_us: Gaps | None = None
    standstill_us: float | None = None
    """The longest time between fault and recovery in which no data frame was sent or received, us."""
    set_aside_because: str | None = None
    checks: list[TrialCheck] = Field(default_factory=list)


class Summary(Model):
    """The statistics of a metric or a time over all repetitions.

    For a time, ``not_felt`` counts the faults that lost no packet. ``missing`` counts the other faults that
    have no such time.
    """

    n: int = Field(ge=0)
    not_felt: int | None = None
    missing: int | None = None
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    ci95_p50: tuple[float, float] | None = None
    ci95_mean: tuple[float, float] | None = None
    max_error: float | None = None


class Times(Model):
    """The summaries of the trials' times, for the first transport of the scenario."""

    first_loss_us: Summary
    detected_us: Summary
    rerouted_us: Summary
    recovered_us: Summary
    recovered_since_loss_us: Summary


class Validity(Model):
    """The reasons why the run is not valid, and other notes. A valid run has no reasons."""

    reasons: list[str]
    notes: list[str]
    rules: dict[str, float] = Field(default_factory=dict)
    loads: list[dict[str, Any]] = Field(default_factory=list)


class Sample(Model):
    """One repetition with the values of its metrics. If there are too many values, only some are kept."""

    repetition: int
    valid: bool
    integrity: str
    failure: str | None
    metrics: dict[str, list[float]]
    data: str | None
    measure_ns: int
    end_ns: int
    counters: dict[str, int]


class Aside(Model):
    """A repetition that does not count and was run again: the reasons, and its values."""

    repetition: int
    reasons: list[str]
    metrics: dict[str, list[float]]


class Series(Model):
    """Delivered bytes and lost packets in each time bin of a repetition."""

    repetition: int
    start_us: float
    bin_us: float
    bytes: list[int]
    lost: list[int]


class Links(Model):
    """The bytes that each measured link carried, in each time bin of a repetition."""

    repetition: int
    start_us: float
    bin_us: float
    bytes: dict[str, list[int]]


class PathEvents(Model):
    """Events of EVs in a repetition: (time, rank, queue pair, EV). ``replaced`` has the new EV as well.

    Times are us since the start of the measurement.
    """

    repetition: int
    lost: list[list[float]] = Field(default_factory=list)
    """Lost packets, without packets that a switch trimmed."""
    retired: list[list[float]] = Field(default_factory=list)
    replaced: list[list[float]] = Field(default_factory=list)
    restored: list[list[float]] = Field(default_factory=list)
    skipped: dict[str, int] = Field(default_factory=dict)
    """For each EV, how many times the rotation skipped it."""
    left_out: int = 0
    """The number of events that are not in the lists. A list has only the first 5000 events of a kind."""


class StoppedPort(Model):
    """The sending end of a lossless link, in one repetition. ``port`` is the link's name, ``NEAR>FAR``."""

    port: str
    stops: int
    """How often the far end stopped the sender, by a pause or because no credits were left."""
    stopped_us: float
    depth: int
    """The largest number of stopped links in a row, from the link nearest to the cause up to this link."""
    blocked_packets: int
    """The packets that waited for this stopped link although their next port was free."""
    blocked_us: float
    """The sum of the waiting times of these packets."""
    queue_bytes: int
    """The longest queue in front of this link."""


class FlowControl(Model):
    """Statistics of the lossless links in the measured part of a repetition."""

    repetition: int
    mode: Literal["pfc", "credit"]
    links: int
    """The number of links. Each direction of a link counts as one link."""
    length_us: float
    bin_us: float
    stopped_us: list[float]
    """For each time bin, the sum of the times in which links were stopped."""
    ports: list[StoppedPort]
    """The links that were stopped or had a queue. The link with the longest stops comes first."""


class RepetitionFault(Fault):
    """A fault in a repetition. Unlike a `Trial`, it has no measured times."""

    repetition: int


class Transport(Model):
    """The settings, measurements and faults of one transport."""

    meaning: str
    kind: str
    routing: str
    options: dict[str, Any] = Field(default_factory=dict)
    one_plane: bool = False
    loss: float = 0.0
    detection_ns: int | None = None
    lossless: str = ""
    """How links avoided drops: ``pfc`` or ``credit``. If empty, full buffers dropped packets."""
    valid: bool
    validity: Validity
    integrity: str
    bytes_delivered: int | None
    counters: dict[str, int] = Field(default_factory=dict)
    summary: dict[str, Summary]
    samples: list[Sample] = Field(default_factory=list)
    set_aside: list[Aside] = Field(default_factory=list)
    series: list[Series] = Field(default_factory=list)
    links: list[Links] = Field(default_factory=list)
    flow_control: list[FlowControl] = Field(default_factory=list)
    path_events: list[PathEvents] = Field(default_factory=list)
    faults: list[RepetitionFault] = Field(default_factory=list)
    pictures: list[dict[str, Any]] = Field(default_factory=list)
    details: list[dict[str, Any]] = Field(default_factory=list)


class ClaimCheck(Model):
    """One condition of a claim. ``holds`` is null if the run has no answer. ``source``: paper or theory."""

    asked: str
    found: str
    holds: bool | None
    decided_by: float | None = None
    """If the interval includes a limit: the factor by which the number of values must grow for a decision."""
    source: str = ""


class Verdict(Model):
    """The verdict on a claim. ``holds`` is null if the run does not show whether the claim holds."""

    holds: bool | None
    because: str
    decided_by: float | None = None
    """If the claim is open: the estimated factor by which the number of repetitions must grow."""
    paper: str
    checks: list[ClaimCheck]


class Result(Model):
    """The complete contents of result.json."""

    schema_: Literal["mrclab.result/2"] = Field(alias="schema")
    scenario: str
    claim: str = ""
    parameters: dict[str, Any]
    target: str
    topology: str
    seed: int
    command: list[str] = Field(default_factory=list)
    finished: str
    unfinished: str | None = None
    """If the run ended early: the reason. The result has the measurements up to the early end."""
    system: dict[str, Any]
    valid: bool
    validity: Validity
    integrity: str
    bytes_delivered: int | None
    trials: list[Trial]
    set_aside: list[Trial] = Field(default_factory=list)
    summary: Times
    transports: dict[str, Transport] = Field(min_length=1)
    method: dict[str, Any]
    verdict: Verdict | None = None


def result_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of result.json."""
    return Result.model_json_schema(by_alias=True)
