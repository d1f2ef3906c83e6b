"""All options of a RoCEv2 endpoint, with units and the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Encapsulation = Literal["srv6", "plain"]


@dataclass(frozen=True, slots=True)
class DcqcnConfig:
    """Parameters of DCQCN, with the names and times of [DCQCN] §5.

    In the paper, R_AI is a thousandth of the link's rate (40 Mbit/s of 40 Gbit/s). Here the default is a
    fiftieth. Reason: at 1 Gbit/s only two packets fit into one timer step (paper: 70). So almost every marked
    packet lowers the rate, and steps of a thousandth are too small to recover. A test (tests/hosts/roce) has
    one queue pair and its ACKs on a link that marks packets. In the first 160 ms the queue pair uses 87 % of
    the link's rate if R_AI is a fiftieth, and 79 % if R_AI is a thousandth.
    """

    line_rate_bps: int = 1_000_000_000
    """Rate of the NIC's port, bit/s. A queue pair starts at this rate and never exceeds it."""
    cnp_interval_ns: int = 50_000
    """Shortest time between two CNPs of a queue pair, ns (N in the paper)."""
    g: float = 1 / 256
    """Weight of a new observation in alpha, the estimate of congestion."""
    alpha_timer_ns: int = 55_000
    """Period without a CNP after which alpha becomes smaller, ns (K in the paper)."""
    rate_timer_ns: int = 55_000
    """Time between two steps that increase the rate, ns (T in the paper)."""
    byte_counter_bytes: int = 10_000_000
    """Number of sent bytes after which an additional step increases the rate (B in the paper)."""
    fast_recovery_steps: int = 5
    """Number of steps (F) that halve the distance to the target rate. Later steps also raise the target."""
    additive_increase_bps: int = 0
    """R_AI, the step of the additive increase, bit/s; 0: a fiftieth of the line rate."""
    hyper_increase_bps: int = 0
    """R_HAI, the step of the hyper increase, bit/s; 0: ten times R_AI. The paper gives no value."""
    minimum_rate_bps: int = 0
    """Lowest rate after CNPs, bit/s; 0: a thousandth of the line rate."""

    burst_bytes: int = 4 * 4096
    """Bytes that may be sent at once after an idle time: several packets, because timers are not exact."""

    def __post_init__(self) -> None:
        if self.line_rate_bps < 1000 or min(self.alpha_timer_ns, self.rate_timer_ns) < 1:
            raise ValueError("line_rate_bps must be at least 1000, alpha_timer_ns and rate_timer_ns positive")
        if not 0 < self.g < 1 or self.byte_counter_bytes < 1 or self.fast_recovery_steps < 1:
            raise ValueError("g must be between 0 and 1, byte_counter_bytes and fast_recovery_steps positive")
        if min(self.additive_increase_bps, self.hyper_increase_bps, self.minimum_rate_bps) < 0:
            raise ValueError("rates must not be negative")
        if min(self.cnp_interval_ns, self.burst_bytes) < 0:
            raise ValueError("cnp_interval_ns and burst_bytes must not be negative")

    @property
    def r_ai_bps(self) -> int:
        """Return the step of the additive increase (R_AI) that is used, bit/s."""
        return self.additive_increase_bps or self.line_rate_bps // 50

    @property
    def r_hai_bps(self) -> int:
        """Return the step of the hyper increase (R_HAI) that is used, bit/s."""
        return self.hyper_increase_bps or 10 * self.r_ai_bps

    @property
    def r_min_bps(self) -> int:
        """Return the lowest rate that is used, bit/s."""
        return self.minimum_rate_bps or self.line_rate_bps // 1000


@dataclass(frozen=True, slots=True)
class RoceConfig:
    """Options of one endpoint and of every queue pair on it."""

    mtu_bytes: int = 4096
    """PMTU: payload of each packet of a message except the last, bytes. Allowed are 256, 512, 1024, 2048
    and 4096 [IBTA 9.7]."""
    udp_port: int = 4791
    hop_limit: int = 64
    pkey: int = 0xFFFF
    dscp_data: int = 26
    """DSCP of data and ACKs, as usual in RoCE deployments."""
    dscp_cnp: int = 46
    """DSCP of CNPs. 46 is the high class in mrclab's switches. Deployments often use 48."""
    encapsulation: Encapsulation = "srv6"
    """`plain`: IPv6 for a fabric that hashes flows (ECMP). `srv6`: the sender chooses one path for each queue
    pair, also by a hash, and writes the path's uSID container into each packet."""
    qps: int = 1
    """Number of queue pairs over which each message is split, as with NCCL_IB_QPS_PER_CONNECTION."""
    stripe_alignment_bytes: int = 128
    """The length of each part of a message, except the last, is a multiple of this number, as in NCCL."""
    window_bytes: int = 64 * 4096
    """Limit of the payload in flight of a connection, over all its queue pairs, bytes. Real NICs have no
    window, because PFC prevents drops. MRC has the same window here, so that the comparison is fair."""
    ack_interval: int = 8
    """One of this many packets requests an ACK. The last packet of a message always requests an ACK."""
    timeout_exponent: int = 14
    """Local ACK timeout: 4.096 us * 2^n [IBTA 9.7.6.1.3]. 14 is 67 ms, as in perftest. NCCL has 14 to 20,
    depending on the version. [IBTA] allows a NIC to wait up to four times as long; mrclab does not."""
    retry_count: int = 7
    """Number of retries (after timeouts or NAKs) without progress before the queue pair fails; at most 7."""
    rnr_retry: int = 7
    """Number of retries after RNR NAKs before the queue pair fails; 7: no limit [IBTA 9.7.5.2.8]."""
    rnr_timer: int = 12
    """Code of the time that a sender waits after an RNR NAK; 12 means 0.64 ms [IBTA Table 45]."""
    receive_credits: int | None = None
    """Number of receives that are posted at the start. None: there are always enough, as for MRC."""
    dcqcn: DcqcnConfig | None = DcqcnConfig()
    """None turns DCQCN off: there are no CNPs, and the rate is always the line rate."""

    @property
    def kind(self) -> str:
        """Return the kind of transport. This is a property, because mypyc turns a ClassVar into a field."""
        return "rocev2"

    def __post_init__(self) -> None:
        if self.mtu_bytes not in (256, 512, 1024, 2048, 4096):
            raise ValueError(f"mtu_bytes must be 256, 512, 1024, 2048 or 4096, not {self.mtu_bytes}")
        if not 1 <= self.qps <= 128:
            raise ValueError(f"qps must be in 1..128, not {self.qps}")
        if not 0 <= self.timeout_exponent <= 31:
            raise ValueError(f"timeout_exponent must be in 0..31, not {self.timeout_exponent}")
        if not 0 <= self.retry_count <= 7 or not 0 <= self.rnr_retry <= 7:
            raise ValueError("retry_count and rnr_retry have 3 bits")
        if not 0 <= self.rnr_timer <= 31:
            raise ValueError(f"rnr_timer must be in 0..31, not {self.rnr_timer}")
        if min(self.window_bytes, self.ack_interval, self.stripe_alignment_bytes) < 1:
            raise ValueError("window_bytes, ack_interval and stripe_alignment_bytes must be positive")
        if self.encapsulation not in ("srv6", "plain"):
            raise ValueError(f"encapsulation must be srv6 or plain, not {self.encapsulation}")
        if not (0 <= self.dscp_data < 64 and 0 <= self.dscp_cnp < 64):
            raise ValueError("dscp_data and dscp_cnp have 6 bits")

    @property
    def timeout_ns(self) -> int | None:
        """Local ACK timeout, ns; None (no timeout) for exponent 0."""
        return 4096 << self.timeout_exponent if self.timeout_exponent else None
