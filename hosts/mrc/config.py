"""All options of an endpoint, in one place, with units and the reason for each default."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from mrclab.hosts.rdma.frames import UDP_PORT
from mrclab.p4src.contract import (
    CONTROL_DSCP,
    FRAME_OVERHEAD_BYTES,
    NO_TRIM_DSCP,
    QUEUE_MIN_FRAMES,
    QUEUE_TRIM_LAST_HOP,
    RETX_DSCP,
    TRIMMABLE_DSCP,
    TRIMMED_DSCP,
    TRIMMED_LAST_HOP_DSCP,
)

_REFERENCE_BDP_BYTES: Final = 150_000
"""100 Gbit/s times 12 us: the network that UEC's constants were chosen for."""
_REFERENCE_RTT_NS: Final = 12_000
NEVER_NS: Final = 1 << 62
"""A delay that no packet has: it puts quick adapt by delay out of reach."""


@dataclass(frozen=True, slots=True)
class NsccConfig:
    """The knobs of [API]. 0 means derived, as each says; `resolve` puts the derived values in."""

    base_rtt_ns: int = 50_000
    """RTT of a full packet in an idle network, ns: the base RTT before the first smaller sample."""
    link_bps: int = 1_000_000_000
    """The NIC's rate towards one destination, all planes together, bit/s."""
    byte_ns: float = 0.0
    """Serialisation time of a byte over all links of a path, ns: by this times the bytes that it lacks, the
    RTT of a packet shorter than a full one is too small. 0 where links are so fast that it does not matter.
    """
    target_delay_ns: int = 0
    """Queueing delay aimed at; 0: 0.75 base RTT where switches trim, else one base RTT [UEC]."""
    max_cwnd_bytes: int = 0
    """Largest window; 0: 1.5 * link * base RTT, eight packets at least."""
    first_cwnd_bytes: int = 0
    """First window, up to the largest; 0: the largest, as no source states one."""
    alpha: float = 0.0
    """Gain of the proportional increase, bytes per ns of delay to spare; 0: 4 * a * b * MTU / target,
    with a = BDP / 150 kB and b = target / 12 us, which scale UEC's reference network to this one."""
    fi: float = 0.0
    """Gain of the fair increase, bytes; 0: 5 * MTU * a."""
    fi_scale: float = 0.0
    """Gain of the fast increase, as a part of the bytes acknowledged; 0: 0.25 * a. Fast increase is for idle
    networks: it starts once a whole window was acknowledged without any delay, and ends when delay shows."""
    fast_delay_ns: int = 1_000
    """Delay below this counts as none at all."""
    fast_ends_by_marks: bool = True
    """Any sample with delay ends the fast increase. False: only one without a mark and below the target, or
    a decrease [UEC]."""
    rcvd_bytes_clock: bool = False
    """Count the bytes that the receiver reports as arrived (rcvd_bytes of CC_STATE) [UEC]. False: count the
    bytes of the packets that each SACK acknowledges for the first time. The bytes in flight are counted from
    packets either way."""
    nack_rtt: bool = False
    """The RTT of a NACK may lower the base RTT [UEC]. A trimmed packet overtakes full ones, so on slow links
    `byte_ns` must be right."""
    eta: float = 0.0
    """Bytes added in every adjustment period, so that no flow starves; 0: 0.15 * MTU * a."""
    gamma: float = 0.8
    """Strength of the multiplicative decrease."""
    max_md_jump: float = 0.5
    """Least factor of one multiplicative decrease."""
    delay_weight: float = 0.0125
    """Weight of a new sample in the average delay, which decides how far a decrease goes. 0: the average is
    the plain mean of the samples of the last base RTT [UEC]."""
    adjust_bytes_threshold: int = 0
    """More acknowledged bytes than this let gathered increases take effect; 0: 8 * MTU."""
    adjust_period_ns: int = 0
    """Time after which they do in any case; 0: one base RTT."""
    disable_qa: bool = False
    """Never quick adapt."""
    qa_gate: int = 3
    """Quick adapt only while less than max_cwnd / 2^gate was acknowledged in its period."""
    qa_threshold_ns: int = 0
    """Delay that calls for quick adapt without a trim; 0: none where switches trim, else 4 * target, which is
    (drop threshold / BDP - 1) base RTTs with the 5 BDPs of UEC's switches."""

    def __post_init__(self) -> None:
        if self.base_rtt_ns < 1 or self.link_bps < 1:
            raise ValueError("nscc: base_rtt_ns and link_bps must be positive")
        if not (self.gamma >= 0 and 0 < self.max_md_jump <= 1 and 0 <= self.delay_weight <= 1):
            raise ValueError("nscc: max_md_jump is in (0, 1], delay_weight in [0, 1], gamma not negative")
        if self.first_cwnd_bytes < 0:
            raise ValueError(f"nscc: first_cwnd_bytes must not be negative, but {self.first_cwnd_bytes}")
        if self.byte_ns < 0:
            raise ValueError(f"nscc: byte_ns must not be negative, but {self.byte_ns}")

    def resolve(self, mtu_bytes: int, *, trim: bool, queue_ns: int = 0) -> NsccConfig:
        """Return a copy in which every value that was left to be derived is set.

        `queue_ns` is the delay of a full queue, 0 if it is not known. The queues of slow links hold more than
        5 BDPs. Without trimming, such a delay alone must not start quick adapt, which would slow the sender
        down again and again.
        """
        bdp = self.link_bps * self.base_rtt_ns / 8e9
        a = bdp / _REFERENCE_BDP_BYTES
        target = self.target_delay_ns or (self.base_rtt_ns * 3 // 4 if trim else self.base_rtt_ns)
        b = target / _REFERENCE_RTT_NS
        return replace(
            self,
            target_delay_ns=target,
            max_cwnd_bytes=self.max_cwnd_bytes or self.max_window(self.base_rtt_ns, mtu_bytes),
            alpha=self.alpha or 4 * a * b * mtu_bytes / target,
            fi=self.fi or 5 * mtu_bytes * a,
            fi_scale=self.fi_scale or 0.25 * a,
            eta=self.eta or 0.15 * mtu_bytes * a,
            adjust_bytes_threshold=self.adjust_bytes_threshold or 8 * mtu_bytes,
            adjust_period_ns=self.adjust_period_ns or self.base_rtt_ns,
            qa_threshold_ns=self.qa_threshold_ns or (NEVER_NS if trim else max(4 * target, queue_ns)),
        )

    def max_window(self, base_rtt_ns: int, mtu_bytes: int) -> int:
        """Return the largest window at a base RTT, bytes: 1.5 BDPs, eight packets at least."""
        return max(int(1.5 * self.link_bps * base_rtt_ns / 8e9), 8 * mtu_bytes)


OTHER_UDP_PORT: Final = 4971
"""UDP port that the document prints; always accepted, sent if `udp_port` has this value."""


@dataclass(frozen=True, slots=True)
class SpecReading:
    """How to read the specification where its readers disagree; the default has the better evidence.

    The specification was not available to us. The tags name its readers: docs/mrc-endpoint.md.
    """

    udp_port: int = UDP_PORT
    """UDP destination port of sent frames; both ports are accepted. 4791: S-DOC, MP. 4971, as the document
    prints: S-PV, S-EMU, S-NS3."""
    ev_low_half_in_udp: bool = True
    """EV bits 15:0 travel in the UDP source port and 31:16 in the flow label: S-DOC. False, the halves
    swapped: S-EMU. The two ends must agree."""
    oor_nack: bool = True
    """Answer PSNs beyond the window with NACK PSN_OOR_WINDOW, as Table 7-3 has it: S-NS3, S-DOC. False, drop
    them silently, as section 6.3.1 has it: S-NOTE reads both."""
    max_wimm_syndrome: int = 0x61
    """AETH syndrome for more WRITE_IMMs in flight than agreed. 61, Invalid Request: S-NS3. A separate code,
    whose value nobody gives: UCCL."""
    no_receive_syndrome: int = 0x63
    """AETH syndrome for a WRITE_IMM without a posted receive. 63, Remote Operational Error, is inferred:
    S-NOTE has a semantic error that ends the QP, and nobody gives the code."""
    zero_length_messages: bool = True
    """Accept messages of 0 bytes, as IBTA has them and programs send them with an immediate. False, 1 byte at
    least, as section 5.1 has it: S-NOTE."""
    skip_after_marked_probe: bool = True
    """An EV whose last probe was answered with SKIP_ONCE sits out a turn first: S-DOC. False, it is GOOD at
    once: S-EMU."""
    skip_ns: int = 0
    """How long SKIP lasts, ns. 0, until the rotation reaches the EV: GLB. 5000: S-NS3."""
    port_mask_first_bit: int = 0
    """Bit of a NIC's first port in the mask of a PORT_STATUS_UPDATE. 0: inferred. 1, as the API's masks count
    ports from 1: API. Nobody gives the wire's. The two ends must agree."""
    retransmission_timer_at_base: bool = False
    """A retransmission's ACK timer begins at the base interval again: S-DOC. False, the doubling goes on: if
    the peer's packets arrive but none reach it, the first would use up all retries within 6 ms."""
    service_time: bool = False
    """The responder adds the time it held an answer back to the timestamp it echoes, in units of 128 ns,
    and the requester takes it out of the RTT, if both ends have this option: inferred from API and S-DOC.
    False: no reader finds a field for it."""

    def __post_init__(self) -> None:
        if not 0 < self.udp_port < 1 << 16:
            raise ValueError(f"udp_port must be in 1..65535, not {self.udp_port}")
        if self.port_mask_first_bit not in (0, 1):
            raise ValueError(f"port_mask_first_bit is 0 or 1, not {self.port_mask_first_bit}")
        if self.skip_ns < 0:
            raise ValueError(f"skip_ns must not be negative, but {self.skip_ns}")
        if self.max_wimm_syndrome >> 5 != 3:
            raise ValueError(f"max_wimm_syndrome must be a NAK, 0x60..0x7f, not {self.max_wimm_syndrome:#x}")
        if self.no_receive_syndrome >> 5 != 3:
            raise ValueError(
                f"no_receive_syndrome must be a NAK, 0x60..0x7f, not {self.no_receive_syndrome:#x}"
            )

    def udp_ports(self) -> tuple[int, ...]:
        """Return the UDP destination ports of frames that we accept."""
        return tuple({UDP_PORT, OTHER_UDP_PORT, self.udp_port})


_NSCC = NsccConfig()
_READING = SpecReading()
LARGEST_MPR: Final = 255 * 128
"""8 bits of 128 PSNs each [SPEC SETH]."""
MOST_LINEAR_RETRIES: Final = 7
ENDLESS_RETRIES: Final = 25
"""Exponential retries without end, and the largest value there is [API]."""
ACK_LADDERS: Final = {
    "lab": (8, MOST_LINEAR_RETRIES, 15),
    "production": (20, MOST_LINEAR_RETRIES, 3),
    "endless": (8, MOST_LINEAR_RETRIES, ENDLESS_RETRIES),
}
"""Exponent, linear and exponential retries of the ACK timer by name.

The exponents are those of the API's example and of Microsoft's NCCL plugin [API, NCCL], which publish no
count of retries that ends. A peer is given up after 34 s of silence (`lab`) or 40 s (`production`), so that
a link that is down for seconds ends no queue pair.
"""
_LARGEST_FRAME_BYTES = 9014
QUEUE_BYTES = round(QUEUE_TRIM_LAST_HOP * QUEUE_MIN_FRAMES) * _LARGEST_FRAME_BYTES
"""Bytes that wait in front of a NIC on a slow link before the switch trims (`mrclab.controller.queues`)."""


@dataclass(frozen=True, slots=True)
class DscpMap:
    """DSCP code points of the traffic classes [SPEC, class names]; values are a deployment's choice."""

    no_trim: int = NO_TRIM_DSCP
    """Data that switches may drop but not trim."""
    trimmable: int = TRIMMABLE_DSCP
    trimmable_retx: int = RETX_DSCP
    trimmed: int = TRIMMED_DSCP
    """Set by a switch that cut the payload off."""
    trimmed_lasthop: int = TRIMMED_LAST_HOP_DSCP
    """Set by the last switch, whose congestion is incast and no fault of the path."""
    control: int = CONTROL_DSCP
    """SACK, NACK, transport ACK, endpoint responses."""


@dataclass(frozen=True, slots=True)
class MrcConfig:
    """Options of one endpoint and of every QP on it, in sections by idea.

    Each has its meaning, its unit, and who would change it: most are for interworking with other
    implementations or for experiments, some must fit the fabric's speed.
    """

    # Frames: change them to interwork with other implementations, or with other switches' classes.
    mtu_bytes: int = 4096
    """Largest payload of one data packet (PMTU), bytes."""
    reading: SpecReading = _READING
    """How to read the specification where its readers disagree; change it to interwork with others."""
    ev_mode: str = "srv6"
    """How an EV chooses its path. `srv6`: the sender writes the path's segment list into an outer header.
    `ecmp`: plain IPv6, whose UDP source port and flow label carry the EV, and switches hash them.
    `structured`: the same frames, but each tier of switches on the way up reads bits of the EV."""
    ev_in_flow_label: bool = True
    """False: EVs have 16 bits, or are indices of 16, in the UDP source port alone [API: UDP, SRv6].
    """
    dscp: DscpMap = DscpMap()
    hop_limit: int = 64
    """Hop limit of both IPv6 headers; raise it only where paths are longer."""
    pkey: int = 0xFFFF
    """Partition key in every BTH; change it where NICs of a partition are to interwork."""
    timestamps: bool = False
    """Put a TSETH (units of 128 ns) into data packets; the responder echoes it."""
    trim: bool = True
    """Mark data as trimmable and answer trimmed packets with NACKs."""

    # Windows and congestion control: `congestion` and what belongs to it are for experiments.
    mpr: int = 1024
    """Receive window in PSNs, a multiple of 128 up to 32,640; the specification demands 1024."""
    dynamic_mpr: bool = False
    """Announce the receive window in SACKs, so that it may change; needs the peer's consent."""
    max_wimm: int = 32
    """WRITE_IMMs a peer may have in flight to us; the specification demands 32."""
    posted_receives: bool = False
    """A WRITE_IMM needs a receive that the peer's application has posted, and without one both ends fail, as
    the specification has it. Off for our own programs, which have a place for every message that they agreed
    on; queue pairs of the verbs API and of other programs request it one by one."""
    transport_ack: bool = True
    """Complete writes by transport ACKs (opcode D1), which say that data is in memory, as the specification
    demands. False: by SACKs, which need only say that it arrived, though ours say both. Needs the peer's
    consent."""
    congestion: str = "fixed"
    """`fixed`, a window per QP that never changes, or `nscc`, one per destination.

    The fixed window is for tests and for comparison; the transport `mrc` of experiments uses NSCC. Other
    names are those of docs/your-own.md.
    """
    path_policy: str = "rotation"
    """Who chooses the EV of a packet among those in use: `rotation`, as MRC has it, or one of
    docs/your-own.md."""
    rotation: str = "shuffled"
    """Order of a plane's EVs in the rotation. `shuffled`: a new random order each round [P1 §2.1]. An
    extension is `stratified`: each round has one EV for each uplink, so that links carry equal shares and EVs
    that share a link are far apart. It needs EVs whose uplink is known; if no two share one, it is the same
    as `shuffled`."""
    ev_sets: str = "queue-pair"
    """The owner of a set of EVs, with its rotation and health: each `queue-pair`. An extension is `peer`: the
    queue pairs to one peer take turns in one rotation, and what one of them learns about a path, all have
    learnt. The set's events name the first of them."""
    cwnd_bytes: int = 64 * 4096
    """Payload bytes in flight allowed by the fixed window."""
    rate_bps: int = 0
    """Cap of payload bits per second to one destination, with any congestion control; 0: none."""
    rate_burst_bytes: int = 16 * 4096
    """Bytes that a rate cap lets through at once after a pause; lower it for smooth traffic."""
    rate_quantum_bytes: int = 1
    """Under a rate cap: after the bucket empties, wait for this much credit, to reduce wake-ups."""
    nscc: NsccConfig = _NSCC
    """Parameters of NSCC; base RTT and link rate must be those of the fabric."""
    window_event_interval_ns: int = 1_000_000
    """At most one WindowChanged event per QP in this time."""

    # EVs: how many to spray over, and when to give one up. For experiments and large fabrics.
    max_active_evs: int = 256
    """EVs a QP sprays over, all planes together; a random subset of the paths when there are more [P1 §2.1].
    """
    evs_per_window: float = 0.0
    """Sizes that set by the window instead: so many EVs for each full packet of the first window, one per
    plane at least and never more than `max_active_evs`; 1 to 2 is the specification's advice [SPEC]. 0: not.
    """
    spare_evs_per_plane: int = 0
    """EVs a plane keeps in reserve for those it retires."""
    ev_health: bool = True
    """False: no EV is ever skipped or retired, whatever becomes of its packets: oblivious spraying, the
    baseline that shows what EV health is good for. Ports that are down are left alone all the same."""
    skip_cap: float = 1.0
    """At most this part of a plane's EVs in use, rounded down, is SKIP at the same time. A mark or a trim
    beyond that leaves its EV in the rotation. 1: no cap, as the specification is read. Less is an extension
    of ours for full links: without a cap, flows that are marked together leave the even rotation together."""
    ev_min_active: int = 0
    """Losses retire no EV while only this many are usable [API]; 0: silent loss always retires [P1 §2.1]."""
    always_skip_after: int = 0
    """A receiver asks for an EV to be dropped (ALWAYS_SKIP) after this many CE marks in a row; 0: never."""
    probe_interval_ns: int = 10_000_000
    """First wait between probes of an ASSUMED_BAD EV; unanswered probes double it."""
    probe_interval_max_ns: int = 160_000_000
    """Longest wait between those probes: how late a mended path is used again."""
    probe_successes: int = 2
    """Consecutive answers that make an ASSUMED_BAD EV GOOD again."""

    # Planes and endpoint operations: timeouts must fit the RTT of the fabric.
    reverse_evs: str = "mirror"
    """Answers go back on the EV that came in (`mirror`), or on one of that plane of late shown to work (`set`
    [P1 §2.4]), which costs probes. P1 says that mirroring does not always work; in fabrics whose two ends
    number a path alike, as ours, it does, and the packet that came in is the freshest proof."""
    reverse_probe_min_ns: int = 1_000_000
    """A receiver that sends no data probes a random EV once per RTT, but not oftener than this."""
    endpoint_timeout_ns: int = 2_000_000
    """An endpoint request (EV_PROBE, PORT_STATUS_UPDATE) unanswered for so long has failed [API example]."""
    port_status_attempts: int = 4
    """Attempts to announce a port status while the peer does not answer. Requests are never repeated: each is
    a new one with the present state."""
    all_ports_down: str = "wait"
    """`wait` for a port to come back, or `error` at once, as NICs whose transceiver flaps do [P1 §5.1]."""

    # SACKs and delivery: how much work acknowledgements cost, and what programs expect.
    sack_threshold_bytes: int = 8192
    """A SACK is due when this much arrived since the last; each packet counts as max(payload, 1024) B.

    Two full packets: with one, a sender in Python spends more on SACKs than it gains by them.
    """
    sack_coalesce: int = 16
    """SACK triggers that one SACK may answer when the responder is read out in batches; 1 answers each alone.
    """
    sack_at_gap: bool = False
    """Answer each packet that arrives while one before it is missing. The specification's triggers do not
    have a gap, but set a least number of SACKs, not a most. For a paced stream over paths that keep order:
    elsewhere nearly every packet follows a gap, and each would cost a SACK."""
    imm_waits_for_earlier: bool = True
    """Deliver a WRITE_IMM only after all earlier writes of its QP are placed, as RDMA programs expect.

    False delivers as soon as the message itself is whole, in RQMSN order.
    """

    # Loss detection: times scale with the fabric. The defaults suit software hosts at 100 Mbit/s and more.
    initial_rtt_ns: int = 1_000_000
    """Stands in for the smoothed RTT until the first sample."""
    min_reorder_ns: int = 20_000
    """Floor of the reordering window; see `mrclab.hosts.mrc.sending.recovery`."""
    reorder_rtt_fraction: float = 0.25
    """Part of the RTT's present floor in the reordering window."""
    reorder_seen_factor: float = 1.5
    """Multiple of the furthest overtaking seen recently in the reordering window."""
    reorder_queueing_factor: float = 2.0
    """Multiple of the queueing delay (the RTT's present floor less the least ever) in that window."""
    max_reorder_ns: int = 4_000_000
    """Ceiling of the reordering window."""
    reorder_memory_ns: int = 250_000_000
    """How long an overtaking counts as recent: at least this, at most twice this; scale it with the RTT."""
    reorder_quiet_ns: int = 1_000_000_000
    """Time without a false loss after which a window that one has doubled halves again; likewise."""
    port_bps: int = 0
    """Rate of the slowest link on the way, as far as known; 0: unknown. If a full packet takes long on it,
    packets of one burst arrive that far apart: the window is then six such times at least, its ceiling six
    times that, the longest wait for a tail probe six such times; and NSCC does not quick adapt to delay that
    a queue there may well cause. The defaults suit 100 Mbit/s and more."""
    tail_probe_max_ns: int = 4_000_000
    """Longest wait before a tail probe."""
    ack_ladder: str = "lab"
    """Times of the ACK timer by name: `lab` (262 us, 7 linear timeouts, then doubling, 34 s in all),
    `production` (1.07 s, likewise, 40 s in all) or `endless` (that of `lab`, and a peer is never given up).
    If links are slow, give an exponent that fits them."""
    ack_timeout_exponent: int | None = None
    """ACK timeout is 1.024 us * 2^n [SPEC Table 7-1]; None: the ladder's."""
    linear_retries: int | None = None
    """Timeouts at the base interval, before it starts to double, 7 at most [API]; None: the ladder's."""
    exponential_retries: int | None = None
    """Timeouts after those, each twice as long, 25 at most [API], which means without end. The next one is an
    error of the QP. None: the ladder's."""
    stall_grace_ns: int = 1_000_000
    """A timer served later than this means that this host stalled, not the network: the frames that arrived
    in that time are read first.
    """

    def __post_init__(self) -> None:
        if self.mpr % 128 or not 128 <= self.mpr <= LARGEST_MPR:
            raise ValueError(f"mpr must be a multiple of 128 up to {LARGEST_MPR}, not {self.mpr}")
        if self.max_wimm >> 16:
            raise ValueError(f"max_wimm has 16 bits, not {self.max_wimm}")
        if not 1 <= self.mtu_bytes <= 9000:
            raise ValueError(f"mtu_bytes must be in 1..9000, not {self.mtu_bytes}")
        if self.ack_ladder not in ACK_LADDERS:
            raise ValueError(f"ack_ladder must be one of {', '.join(ACK_LADDERS)}, not {self.ack_ladder}")
        exponent, linear, exponential = self.ack_times()
        if not 0 <= exponent <= 24:
            raise ValueError(f"ack_timeout_exponent must be in 0..24, not {exponent}")
        if not 0 <= linear <= MOST_LINEAR_RETRIES:
            raise ValueError(f"linear_retries must be in 0..{MOST_LINEAR_RETRIES}, not {linear}")
        if not 0 <= exponential <= ENDLESS_RETRIES:
            raise ValueError(f"exponential_retries must be in 0..{ENDLESS_RETRIES}, not {exponential}")
        if min(self.ev_min_active, self.always_skip_after) < 0:
            raise ValueError("ev_min_active and always_skip_after must not be negative")
        if not 0 <= self.skip_cap <= 1:
            raise ValueError(f"skip_cap is a part from 0 to 1, not {self.skip_cap}")
        if self.evs_per_window < 0:
            raise ValueError(f"evs_per_window must not be negative, but {self.evs_per_window}")
        if self.max_active_evs < 1 or self.spare_evs_per_plane < 0 or self.probe_successes < 1:
            raise ValueError("max_active_evs and probe_successes must be positive, spares not negative")
        if min(self.cwnd_bytes, self.sack_coalesce, self.rate_burst_bytes) < 1 or self.rate_bps < 0:
            raise ValueError(
                "cwnd_bytes, rate_burst_bytes and sack_coalesce must be positive, rate_bps not negative"
            )
        if self.reverse_evs not in ("set", "mirror") or self.all_ports_down not in ("wait", "error"):
            raise ValueError("reverse_evs is set or mirror, all_ports_down is wait or error")
        if min(self.max_wimm, self.port_status_attempts, self.endpoint_timeout_ns) < 1:
            raise ValueError("max_wimm, port_status_attempts and endpoint_timeout_ns must be positive")
        if min(self.min_reorder_ns, self.max_reorder_ns, self.reorder_memory_ns, self.reorder_quiet_ns) < 1:
            raise ValueError(
                "min_reorder_ns, max_reorder_ns, reorder_memory_ns and reorder_quiet_ns must be positive"
            )
        if self.rotation not in ("shuffled", "stratified") or self.ev_sets not in ("queue-pair", "peer"):
            raise ValueError("rotation is shuffled or stratified, ev_sets is queue-pair or peer")
        if self.ev_mode not in ("srv6", "ecmp", "structured"):
            raise ValueError(f"ev_mode must be srv6, ecmp or structured, not {self.ev_mode}")
        if self.port_bps < 0:
            raise ValueError(f"port_bps must not be negative, but {self.port_bps}")
        if not 1 <= self.rate_quantum_bytes <= self.rate_burst_bytes:
            raise ValueError("rate_quantum_bytes must be from 1 to rate_burst_bytes")
        if not self.congestion or not self.path_policy:
            raise ValueError("congestion and path_policy are names of schemes")

    @property
    def kind(self) -> str:
        """The kind of transport (a ClassVar would be a field of the compiled class)."""
        return "mrc"

    def ack_times(self) -> tuple[int, int, int]:
        """Return the ACK timer's exponent, linear retries and exponential retries."""
        exponent, linear, exponential = ACK_LADDERS[self.ack_ladder]
        return (
            exponent if self.ack_timeout_exponent is None else self.ack_timeout_exponent,
            linear if self.linear_retries is None else self.linear_retries,
            exponential if self.exponential_retries is None else self.exponential_retries,
        )

    def packet_time_ns(self) -> int:
        """Return how long a full packet takes on a link of `port_bps`; 0 if that is unknown."""
        if not self.port_bps:
            return 0
        return (self.mtu_bytes + FRAME_OVERHEAD_BYTES) * 8 * 1_000_000_000 // self.port_bps

    def queue_time_ns(self) -> int:
        """Return how long a full queue in front of a link of `port_bps` makes a frame wait; 0: unknown."""
        return QUEUE_BYTES * 8 * 1_000_000_000 // self.port_bps if self.port_bps else 0

    def active_evs(self) -> int:
        """Return how many EVs a QP sprays over, all planes together."""
        if not self.evs_per_window:
            return self.max_active_evs
        window = self.cwnd_bytes
        if self.congestion == "nscc":
            window = self.nscc.resolve(self.mtu_bytes, trim=self.trim).max_cwnd_bytes
        wanted = math.ceil(self.evs_per_window * window / self.mtu_bytes)
        return max(1, min(self.max_active_evs, wanted))
