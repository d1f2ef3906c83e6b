"""The form of result.json as typed models: its JSON schema is made from them, and tests hold results to it.

Every scenario gives this form. Times have their unit in their name; stamps are CLOCK_MONOTONIC ns. A missing
time is null, with a reason next to it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "mrclab.result/2"
TIMES = ("first_loss_us", "detected_us", "rerouted_us", "recovered_us", "recovered_since_loss_us")
"""The times of a fault, in the order in which they are shown."""
EXPECTED = "the scenario's expectations"
"""The source of checks that a scenario itself asks for."""


class Model(BaseModel):
    """A part of a result: no key but those named."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(Model):
    """One fault: each pair of stamps is around one call; null where it was never repaired."""

    kind: str
    where: str
    t_before_ns: int
    t_after_ns: int
    restore_before_ns: int | None = None
    restore_after_ns: int | None = None
    direction: str = "both"
    params: dict[str, Any] = Field(default_factory=dict)
    at_us: float | None = None
    """Since the start of the measurement."""


class Gaps(Model):
    """Times between completions of messages that agents logged, us."""

    source: str
    longest: float | None
    before_p50: float | None
    before_p99: float | None
    before_max: float | None


class TrialCheck(Model):
    """A claim of an endpoint held against the captures; null: there was nothing to check."""

    name: str
    ok: bool | None
    detail: str


class Trial(Model):
    """One fault of one repetition of one transport. ``felt`` is null where it cannot be said."""

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
    """The assumed longest time of a packet on its way."""
    packets_per_s: int | None = None
    """The rate at which data packets were sent, on which the wait for the first loss depends."""
    unnoticed_us: float | None = None
    """The longest stop of an endpoint that does not set the trial aside: its times may be too long by it."""
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
    """The longest time between two messages of a flow from the fault on, the maximum over all flows."""
    app_gap_us: Gaps | None = None
    standstill_us: float | None = None
    """The longest time between fault and recovery in which no data frame left or came in."""
    set_aside_because: str | None = None
    checks: list[TrialCheck] = Field(default_factory=list)


class Summary(Model):
    """A metric or a time over all repetitions. Of times also how many faults have none, and why: they were
    ``not_felt``, or the time is ``missing``."""

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
    """The times of the first transport's faults."""

    first_loss_us: Summary
    detected_us: Summary
    rerouted_us: Summary
    recovered_us: Summary
    recovered_since_loss_us: Summary


class Validity(Model):
    """Why figures are not to be trusted, and what a reader should know."""

    reasons: list[str]
    notes: list[str]
    rules: dict[str, float] = Field(default_factory=dict)
    loads: list[dict[str, Any]] = Field(default_factory=list)


class Sample(Model):
    """One repetition: the values of its metrics (of many, evenly spaced order statistics)."""

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
    """A repetition that was made again: what it found, and why that does not count."""

    repetition: int
    reasons: list[str]
    metrics: dict[str, list[float]]


class Series(Model):
    """What was delivered, and what was lost, in each bin of a repetition."""

    repetition: int
    start_us: float
    bin_us: float
    bytes: list[int]
    lost: list[int]


class Links(Model):
    """What each metered link carried in each bin of a repetition."""

    repetition: int
    start_us: float
    bin_us: float
    bytes: dict[str, list[int]]


class PathEvents(Model):
    """What senders did with their paths in a repetition: of each event its time (us since the measurement's
    start), rank, queue pair and EV, and of ``replaced`` the new EV."""

    repetition: int
    lost: list[list[float]] = Field(default_factory=list)
    """Without the packets that a switch trimmed."""
    retired: list[list[float]] = Field(default_factory=list)
    replaced: list[list[float]] = Field(default_factory=list)
    restored: list[list[float]] = Field(default_factory=list)
    skipped: dict[str, int] = Field(default_factory=dict)
    """How many times each EV was."""
    left_out: int = 0
    """Events beyond the first 5000 of a kind."""


class StoppedPort(Model):
    """What the sending end of a lossless link did in a repetition: ``NEAR>FAR`` is its name."""

    port: str
    stops: int
    """How often the far end stopped it: by a pause, or as no credits were left."""
    stopped_us: float
    depth: int
    """The most links in a row that were stopped up to this one, counted from the one nearest to the cause."""
    blocked_packets: int
    """Packets that waited here while it was stopped, though the port behind it was free for them."""
    blocked_us: float
    """How long they did, added up."""
    queue_bytes: int
    """The longest queue in front of it."""


class FlowControl(Model):
    """What lossless links did in a repetition, while it was measured."""

    repetition: int
    mode: Literal["pfc", "credit"]
    links: int
    """How many there are, each direction for itself."""
    length_us: float
    bin_us: float
    stopped_us: list[float]
    """How long links were stopped in each bin, all together."""
    ports: list[StoppedPort]
    """Links that stopped or had a queue; the one that stopped longest comes first."""


class RepetitionFault(Fault):
    """A fault of a repetition, whether it was measured or not."""

    repetition: int


class Transport(Model):
    """What one transport did."""

    meaning: str
    kind: str
    routing: str
    options: dict[str, Any] = Field(default_factory=dict)
    one_plane: bool = False
    loss: float = 0.0
    detection_ns: int | None = None
    lossless: str = ""
    """How links avoided drops: pfc, credit; empty: they dropped packets that did not fit."""
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
    """One condition of a claim; null: the run does not show it. ``source`` says where the limit is from."""

    asked: str
    found: str
    holds: bool | None
    decided_by: float | None = None
    """An estimate of how many times as many values would decide it, if its interval straddles the limit."""
    source: str = ""


class Verdict(Model):
    """Does the claim hold? Null: the run does not show it."""

    holds: bool | None
    because: str
    decided_by: float | None = None
    """How many times as many repetitions or trials would decide a claim that is open: an estimate."""
    paper: str
    checks: list[ClaimCheck]


class Result(Model):
    """The whole of result.json."""

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
    """Why the run was ended early: the result has the measurements until then."""
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
