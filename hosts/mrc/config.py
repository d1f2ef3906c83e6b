"""All options of an endpoint, with units and the reason for each default."""

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
"""Bandwidth times RTT (BDP) of the network for which UEC chose its constants: 100 Gbit/s times 12 us."""
_REFERENCE_RTT_NS: Final = 12_000
NEVER_NS: Final = 1 << 62
"""A delay that no packet reaches, ns. If `qa_threshold_ns` has this value, delay never starts quick adapt."""


@dataclass(frozen=True, slots=True)
class NsccConfig:
    """The parameters of NSCC [API]. For many of them, 0 means that `resolve` computes the value."""

    base_rtt_ns: int = 50_000
    """RTT of a full packet in an idle network, ns. A smaller measured RTT replaces this value."""
    link_bps: int = 1_000_000_000
    """The NIC's rate towards one destination, all planes together, bit/s."""
    byte_ns: float = 0.0
    """Time to send one byte over all links of a path, ns. For each byte that a short packet lacks, this time
    is added to the packet's RTT. 0: links are so fast that no correction is needed."""
    target_delay_ns: int = 0
    """Target of the queueing delay, ns; 0: 0.75 base RTT if switches trim, else one base RTT [UEC]."""
    max_cwnd_bytes: int = 0
    """Largest window, bytes; 0: 1.5 * link rate * base RTT, but at least eight packets."""
    first_cwnd_bytes: int = 0
    """Window at the start, bytes; 0: the largest window, because no source gives another value."""
    alpha: float = 0.0
    """Gain of the proportional increase: bytes for each ns that the delay is below the target. 0: the gain is
    4 * a * b * MTU / target. The factors a = BDP / 150 kB and b = target / 12 us adapt UEC's constants to
    this network."""
    fi: float = 0.0
    """Gain of the fair increase, bytes; 0: 5 * MTU * a (for `a` see `alpha`)."""
    fi_scale: float = 0.0
    """The fast increase adds this part of the acknowledged bytes to the window; 0: 0.25 * a (for `a` see
    `alpha`). It is for idle networks: it starts after a whole window was acknowledged without delay. For its
    end see `fast_ends_by_marks`."""
    fast_delay_ns: int = 1_000
    """A smaller delay than this counts as no delay, ns."""
    fast_ends_by_marks: bool = True
    """True: any sample with delay ends the fast increase. False: the fast increase ends if a sample has a
    mark or its delay reaches the target, or if the window decreases [UEC]."""
    rcvd_bytes_clock: bool = False
    """True: NSCC counts the bytes that the receiver reports as arrived (rcvd_bytes of CC_STATE) [UEC]. False:
    NSCC counts the bytes of the packets that each SACK acknowledges for the first time. The bytes in flight
    do not depend on this option."""
    nack_rtt: bool = False
    """True: the RTT of a NACK may lower the base RTT [UEC]. A trimmed packet is short, so it has a shorter
    RTT than a full packet. On slow links `byte_ns` must correct the RTT."""
    eta: float = 0.0
    """Bytes added in every adjustment period, so that every flow gets some rate; 0: 0.15 * MTU * a
    (for `a` see `alpha`)."""
    gamma: float = 0.8
    """Strength of the multiplicative decrease."""
    max_md_jump: float = 0.5
    """Smallest factor by which one multiplicative decrease may multiply the window."""
    delay_weight: float = 0.0125
    """Weight of a new sample in the average delay. The average sets the size of a decrease. 0: the average is
    the plain mean of the samples of the last base RTT [UEC]."""
    adjust_bytes_threshold: int = 0
    """The sum of the increases is applied to the window each time more bytes than this were acknowledged;
    0: 8 * MTU."""
    adjust_period_ns: int = 0
    """The sum of the increases is applied to the window at least once in this time, ns; 0: one base RTT."""
    disable_qa: bool = False
    """Turn off quick adapt."""
    qa_gate: int = 3
    """Quick adapt only follows a period in which less than max_cwnd / 2^qa_gate bytes were acknowledged."""
    qa_threshold_ns: int = 0
    """Delay that starts quick adapt without a trim, ns. 0: no delay starts it if switches trim; else it is
    4 * target, because UEC's switches drop packets when the delay is four base RTTs."""

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
        """Return a copy with computed values in place of 0.

        `queue_ns` is the delay of a full queue; 0: unknown. If switches do not trim, `qa_threshold_ns` is at
        least this delay. Otherwise the long queue of a slow link would start quick adapt again and again.
        """
        bdp = self.link_bps * self.base_rtt_ns / 8e9
        a = bdp / _REFERENCE_BDP_BYTES
        target = self.target_delay_ns or max(self.base_rtt_ns * 3 // 4 if trim else self.base_rtt_ns, 1)
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
        """Return the largest window for a base RTT, in bytes: 1.5 BDPs, but at least eight packets."""
        return max(int(1.5 * self.link_bps * base_rtt_ns / 8e9), 8 * mtu_bytes)


OTHER_UDP_PORT: Final = 4971
"""UDP port that the specification prints. Frames to this port are always accepted. The endpoint sends to this
port if `udp_port` has this value."""


@dataclass(frozen=True, slots=True)
class SpecReading:
    """Options for passages of the specification that its readers understand differently.

    The authors of mrclab did not have the specification. They used texts and code by people who had read it.
    Each of these sources has a tag, such as S-DOC (docs/mrc-endpoint.md). Each default is the reading with
    the better evidence.
    """

    udp_port: int = UDP_PORT
    """UDP destination port of sent frames: 4791 [S-DOC, MP], or 4971 as the specification prints [S-PV,
    S-EMU, S-NS3]. Arriving frames may have either of these ports."""
    ev_low_half_in_udp: bool = True
    """True: EV bits 15:0 travel in the UDP source port and 31:16 in the flow label [S-DOC]. False: the halves
    are swapped [S-EMU]. The two ends must agree."""
    oor_nack: bool = True
    """True: answer PSNs beyond the window with NACK PSN_OOR_WINDOW [Table 7-3, S-NS3, S-DOC]. False: drop
    their packets silently [section 6.3.1]. The specification contains both rules [S-NOTE]."""
    max_wimm_syndrome: int = 0x61
    """AETH syndrome if more WRITE_IMMs are in flight than agreed: 0x61, Invalid Request [S-NS3]. UCCL has a
    separate code, but no source gives its value."""
    no_receive_syndrome: int = 0x63
    """AETH syndrome for a WRITE_IMM without a posted receive. An error ends the QP [S-NOTE], but no source
    gives its code: 0x63, Remote Operational Error, is inferred."""
    zero_length_messages: bool = True
    """Accept messages of 0 bytes: IBTA allows them, and programs send them with an immediate. False: messages
    have at least 1 byte [section 5.1, S-NOTE]."""
    skip_after_marked_probe: bool = True
    """If an EV's last probe was answered with SKIP_ONCE, the rotation skips the EV once before it is GOOD
    [S-DOC]. False: the EV is GOOD at once [S-EMU]."""
    skip_ns: int = 0
    """Duration of the state SKIP, ns. 0: until the rotation reaches the EV [GLB]. S-NS3 has 5000."""
    port_mask_first_bit: int = 0
    """Bit of a NIC's first port in the mask of a PORT_STATUS_UPDATE. No source gives the bit for packets, so
    0 is inferred. 1: as in the API's masks, which count ports from 1. The two ends must agree."""
    retransmission_timer_at_base: bool = False
    """True: the ACK timer of a retransmission starts again at the base interval [S-DOC]. Then all retries are
    used up in 6 ms if the peer sends packets, but receives none. False: the interval keeps doubling."""
    service_time: bool = False
    """True: the responder measures the time between a packet's arrival and the answer, and adds this time to
    the returned timestamp (units of 128 ns). The requester subtracts the time from the RTT. Both ends need
    this option [inferred from API, S-DOC]. False: no time is measured, as no source has a field for it."""

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
        """Return the UDP destination ports of frames that the endpoint accepts."""
        return tuple({UDP_PORT, OTHER_UDP_PORT, self.udp_port})


_NSCC = NsccConfig()
_READING = SpecReading()
LARGEST_MPR: Final = 255 * 128
"""Largest receive window, in PSNs: its field has 8 bits and counts units of 128 PSNs [SPEC SETH]."""
MOST_LINEAR_RETRIES: Final = 7
ENDLESS_RETRIES: Final = 25
"""Largest number of exponential retries. With this number, the retries never end [API]."""
ACK_LADDERS: Final = {
    "lab": (8, MOST_LINEAR_RETRIES, 15),
    "production": (20, MOST_LINEAR_RETRIES, 3),
    "endless": (8, MOST_LINEAR_RETRIES, ENDLESS_RETRIES),
}
"""For each `ack_ladder`: exponent of the ACK timeout, number of linear retries and of exponential retries.

The exponents come from the API's example and from Microsoft's NCCL plugin [API, NCCL]. Neither source
gives a number of retries. Here a queue pair fails after 34 s of silence (`lab`) or 40 s (`production`).
So the queue pair survives a link that is down for seconds.
"""
_LARGEST_FRAME_BYTES = 9014
QUEUE_BYTES = round(QUEUE_TRIM_LAST_HOP * QUEUE_MIN_FRAMES) * _LARGEST_FRAME_BYTES
"""Bytes that can wait for a slow link to a NIC before the switch trims (`mrclab.controller.queues`)."""


@dataclass(frozen=True, slots=True)
class DscpMap:
    """DSCP code points of the traffic classes [SPEC, class names]; each deployment chooses the values."""

    no_trim: int = NO_TRIM_DSCP
    """DSCP of data that switches may drop but not trim."""
    trimmable: int = TRIMMABLE_DSCP
    trimmable_retx: int = RETX_DSCP
    trimmed: int = TRIMMED_DSCP
    """DSCP that a switch writes when it trims a packet: the switch removes the payload."""
    trimmed_lasthop: int = TRIMMED_LAST_HOP_DSCP
    """DSCP that a path's last switch writes when it trims: the cause is an incast, and the path is good."""
    control: int = CONTROL_DSCP
    """DSCP of SACKs, NACKs, transport ACKs and endpoint responses."""


@dataclass(frozen=True, slots=True)
class MrcConfig:
    """Options of one endpoint and of every QP on it.

    The text below each option gives its meaning and unit. Most options exist for experiments, or to interwork
    with other implementations. Some options must fit the fabric's speed.
    """

    # Frames: change these options for other implementations of MRC, or for other traffic classes.
    mtu_bytes: int = 4096
    """Largest payload of one data packet (PMTU), bytes."""
    reading: SpecReading = _READING
    """Options for passages of the specification that its readers understand differently."""
    ev_mode: str = "srv6"
    """How an EV chooses its path. `srv6`: the sender writes the path's segment list into an outer header.
    `ecmp`: frames have no outer header. UDP source port and flow label carry the EV, and switches hash them.
    `structured`: frames as with `ecmp`, but each tier of switches chooses an uplink by bits of the EV."""
    ev_in_flow_label: bool = True
    """True: EVs have 32 bits. False: EVs have 16 bits, in the UDP source port alone, as in the API's formats
    UDP and SRv6."""
    dscp: DscpMap = DscpMap()
    hop_limit: int = 64
    """Hop limit of both IPv6 headers; raise it if paths are longer."""
    pkey: int = 0xFFFF
    """Partition key in every BTH; two NICs can communicate only if they have the same key."""
    timestamps: bool = False
    """True: put a TSETH (units of 128 ns) into data packets; the responder returns the timestamp."""
    trim: bool = True
    """Mark data as trimmable and answer trimmed packets with NACKs."""

    # Windows and congestion control: `congestion` and the options that depend on it are for experiments.
    mpr: int = 1024
    """Receive window in PSNs, a multiple of 128 up to 32,640; the specification demands 1024."""
    dynamic_mpr: bool = False
    """True: announce the receive window in SACKs, so that it may change. Both ends need this option."""
    max_wimm: int = 32
    """WRITE_IMMs that a peer may have in flight to this endpoint; the specification demands 32."""
    posted_receives: bool = False
    """True: an arriving WRITE_IMM needs a receive that the application has posted. Without a receive, the
    queue pairs of both ends fail, as the specification demands. mrclab's programs need no receives, because
    both ends agree on a place for every message. The verbs API and other programs set True."""
    transport_ack: bool = True
    """Complete writes by transport ACKs (opcode 0xD1): they confirm that the data is in memory, as the
    specification demands. False: complete writes by SACKs, which confirm only the arrival. Both ends need
    this option."""
    congestion: str = "fixed"
    """`fixed`: one window per QP, which never changes. `nscc`: one window per destination.

    The fixed window is for tests and comparisons. The transport `mrc` of experiments uses NSCC. For other
    names see docs/your-own.md.
    """
    path_policy: str = "rotation"
    """How the EV of a packet is chosen among the EVs in use: by `rotation`, as in MRC, or by a policy of
    docs/your-own.md."""
    rotation: str = "shuffled"
    """Order of a plane's EVs in the rotation. `shuffled`: a new random order each round [P1 §2.1].
    `stratified` is an extension: each round has one EV for each uplink. So all uplinks carry equal shares,
    and EVs with the same uplink are far apart. This order needs EVs that name their uplink."""
    ev_sets: str = "queue-pair"
    """Who shares a set of EVs, its rotation and EV states. `queue-pair`: each queue pair has its own set.
    `peer` is an extension: all queue pairs to one peer share a set. So a loss of one queue pair changes the
    EV states for all of them. The set's events name the queue pair that connected first."""
    cwnd_bytes: int = 64 * 4096
    """Payload bytes that the fixed window allows in flight."""
    rate_bps: int = 0
    """Limit of payload bits per second to one destination, with any congestion control; 0: none."""
    rate_burst_bytes: int = 16 * 4096
    """Payload bytes that the rate cap allows in one burst after an idle time. Lower it to send evenly."""
    rate_quantum_bytes: int = 1
    """If the rate cap's token bucket is empty, wait until it holds this many bytes, to reduce wake-ups."""
    nscc: NsccConfig = _NSCC
    """Parameters of NSCC; base RTT and link rate must be those of the fabric."""
    window_event_interval_ns: int = 1_000_000
    """Shortest time between two WindowChanged events of a QP."""

    # EVs: how many EVs to use, and when to retire an EV. These options are for experiments and large fabrics.
    max_active_evs: int = 256
    """Largest number of EVs of a QP, in all planes. If there are more paths: a random subset [P1 §2.1]."""
    evs_per_window: float = 0.0
    """If positive: the number of EVs for each full packet of the first window. There is at least one EV per
    plane, and never more than `max_active_evs`. The specification advises 1 to 2 [SPEC]. 0: ignored."""
    spare_evs_per_plane: int = 0
    """Backup EVs of each plane, which replace retired EVs."""
    ev_health: bool = True
    """False: no EV is ever skipped or retired, even if its packets are lost (oblivious spraying). This is
    the baseline that shows the effect of EV health. Ports that are down are avoided in any case."""
    skip_cap: float = 1.0
    """Largest part of a plane's EVs in use that may be SKIP at the same time, rounded down. If this limit is
    reached, an EV with a mark or a trim stays in the rotation. 1: no limit, as specified. Less than 1 is
    an extension for full links: without a limit, flows that get marks together skip the same EVs."""
    ev_min_active: int = 0
    """If only this many EVs are usable, a loss retires no EV [API]. 0: a loss retires its EV [P1 §2.1]."""
    always_skip_after: int = 0
    """After this many CE marks in a row, a receiver asks for the EV's retirement (ALWAYS_SKIP). 0: never."""
    probe_interval_ns: int = 10_000_000
    """First wait between probes of an ASSUMED_BAD EV. Each unanswered probe doubles the wait."""
    probe_interval_max_ns: int = 160_000_000
    """Longest wait between probes of an ASSUMED_BAD EV: a repaired path may stay unused for this time."""
    probe_successes: int = 2
    """Consecutive answered probes after which an ASSUMED_BAD EV is GOOD again."""

    # Answers, endpoint requests and ports. Timeouts must fit the RTT of the fabric.
    reverse_evs: str = "mirror"
    """`mirror`: an answer uses the EV of the packet that it answers. This packet shows that the path works,
    and in mrclab's fabrics both ends give a path the same EV. In other fabrics mirroring may fail [P1].
    `set`: an answer uses an EV of the same plane that lately worked [P1 §2.4]. Extra probes find this EV."""
    reverse_probe_min_ns: int = 1_000_000
    """A receiver that sends no data probes random EVs. This is the shortest time between two probes, but at
    least one RTT."""
    endpoint_timeout_ns: int = 2_000_000
    """An endpoint request (EV_PROBE, PORT_STATUS_UPDATE) fails after this time without an answer [API
    example]."""
    port_status_attempts: int = 4
    """How often a port status is announced if the peer does not answer. Each attempt is a new request with
    the present state."""
    all_ports_down: str = "wait"
    """If all ports are down: `wait` for a port. Or `error`: all queue pairs fail at once, as on some NICs
    [P1 §5.1]."""

    # Options for SACKs (how often a SACK is sent) and for the order in which messages are delivered.
    sack_threshold_bytes: int = 8192
    """A SACK is due when this many bytes have arrived; each packet counts as max(payload, 1024) bytes.

    The default is two full packets. With one full packet, SACKs cost a sender in Python too much time.
    """
    sack_coalesce: int = 16
    """Up to this many due SACKs become one SACK, if several packets arrived before it was built."""
    sack_at_gap: bool = False
    """True: answer each packet that arrives while an earlier PSN is missing. The specification does not ask
    for this, but allows additional SACKs. Use this option for a paced stream over paths that keep order. With
    spraying, almost every packet follows a gap, and each such packet would cost a SACK."""
    imm_waits_for_earlier: bool = True
    """Deliver a WRITE_IMM only after all earlier writes of its QP are in memory, as RDMA programs expect.

    False: deliver a WRITE_IMM when all its packets have arrived, but WRITE_IMMs still in RQMSN order.
    """

    # Loss detection: these times depend on the fabric. The defaults fit hosts whose NIC is a program, and
    # links of at least 100 Mbit/s.
    initial_rtt_ns: int = 1_000_000
    """Smoothed RTT before the first sample, ns."""
    min_reorder_ns: int = 20_000
    """Smallest reordering window, ns; see `mrclab.hosts.mrc.sending.recovery`."""
    reorder_rtt_fraction: float = 0.25
    """The reordering window is at least this part of the smallest recent RTT."""
    reorder_seen_factor: float = 1.5
    """The reordering window is at least this factor times the longest recent overtaking: the difference of
    the send times of two packets that arrived in the wrong order."""
    reorder_queueing_factor: float = 2.0
    """The reordering window is at least this factor times (smallest recent RTT - smallest RTT ever)."""
    max_reorder_ns: int = 4_000_000
    """Largest reordering window, ns."""
    reorder_memory_ns: int = 250_000_000
    """An overtaking counts as recent for at least this time, and for at most twice this time. Choose the time
    in proportion to the RTT."""
    reorder_quiet_ns: int = 1_000_000_000
    """If a packet that counted as lost arrives, the reordering window is doubled. After this time without
    such a packet, the window is halved again."""
    port_bps: int = 0
    """Rate of the slowest link of the path, bit/s; 0: unknown. On slow links, full packets of a burst arrive
    far apart. So the reordering window is at least six packet times, and so is the longest wait for a tail
    probe. NSCC's quick adapt ignores a delay that a full queue explains."""
    tail_probe_max_ns: int = 4_000_000
    """Longest wait before a tail probe, ns."""
    ack_ladder: str = "lab"
    """Times of the ACK timer, by name. `lab`: seven timeouts of 262 us, then each is twice as long; the queue
    pair fails after 34 s. `production`: the same with 1.07 s and 40 s. `endless`: as `lab`, but the queue
    pair never fails. For slow links, set `ack_timeout_exponent`."""
    ack_timeout_exponent: int | None = None
    """Number n: the ACK timeout is 1.024 us * 2^n [SPEC Table 7-1]. None: `ack_ladder` gives n."""
    linear_retries: int | None = None
    """Number of timeouts before the interval doubles; at most 7 [API]. None: `ack_ladder` gives it."""
    exponential_retries: int | None = None
    """Number of timeouts after the linear ones, each twice as long as the one before; at most 25, which means
    without end [API]. If one more timeout follows, the QP fails. None: `ack_ladder` gives the number."""
    stall_grace_ns: int = 1_000_000
    """If a timer is handled more than this time, ns, after it was due, the host was busy. Then an answer may
    already have arrived, so the endpoint first reads the waiting frames."""

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
        """The kind of transport. This is a property, because mypyc would make a ClassVar a field."""
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
        """Return the time to send a full packet on a link of `port_bps`; 0 if the rate is unknown."""
        if not self.port_bps:
            return 0
        return (self.mtu_bytes + FRAME_OVERHEAD_BYTES) * 8 * 1_000_000_000 // self.port_bps

    def queue_time_ns(self) -> int:
        """Return how long a frame waits in the full queue of a link of `port_bps`, ns; 0 if unknown."""
        return QUEUE_BYTES * 8 * 1_000_000_000 // self.port_bps if self.port_bps else 0

    def active_evs(self) -> int:
        """Return how many EVs a QP uses in all planes together."""
        if not self.evs_per_window:
            return self.max_active_evs
        window = self.cwnd_bytes
        if self.congestion == "nscc":
            window = self.nscc.resolve(self.mtu_bytes, trim=self.trim).max_cwnd_bytes
        wanted = math.ceil(self.evs_per_window * window / self.mtu_bytes)
        return max(1, min(self.max_active_evs, wanted))
