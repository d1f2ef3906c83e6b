"""All options of a RoCEv2 endpoint, with units and the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Encapsulation = Literal["srv6", "plain"]


@dataclass(frozen=True, slots=True)
class DcqcnConfig:
    """Parameters of DCQCN, under the names and with the times of [DCQCN] §5.

    Rates follow the link, but not in the paper's proportion, which is 40 Mb/s of 40 Gb/s. On a link of 1 Gb/s
    a timer step is not 70 packets long but two, so that nearly every marked packet cuts the rate, and
    a thousandth of the link per step does not win it back. If one queue pair shares a marking bottleneck
    with ACKs (tests/hosts/roce), a fiftieth fills it to 87 % in the first 160 ms, a thousandth to 79 %.
    """

    line_rate_bps: int = 1_000_000_000
    """Rate of the NIC's port: the rate at which a queue pair starts and that it never exceeds."""
    cnp_interval_ns: int = 50_000
    """At most one CNP per queue pair in this time (N)."""
    g: float = 1 / 256
    """Weight of the newest observation in alpha."""
    alpha_timer_ns: int = 55_000
    """Without a CNP for so long alpha shrinks (K)."""
    rate_timer_ns: int = 55_000
    """One step of increase per this time (T)."""
    byte_counter_bytes: int = 10_000_000
    """And one per this many bytes sent (B)."""
    fast_recovery_steps: int = 5
    """Steps of either kind that halve the way back to the target before the target itself rises (F)."""
    additive_increase_bps: int = 0
    """R_AI; 0 is a fiftieth of the line rate."""
    hyper_increase_bps: int = 0
    """R_HAI; 0 is ten times R_AI. The paper gives no value."""
    minimum_rate_bps: int = 0
    """Rate below which no CNP brings a queue pair; 0 is a thousandth of the line rate."""

    burst_bytes: int = 4 * 4096
    """Bytes that a limiter with credit left lets through at once, because software timers are coarse."""

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
        """R_AI in effect."""
        return self.additive_increase_bps or self.line_rate_bps // 50

    @property
    def r_hai_bps(self) -> int:
        """R_HAI in effect."""
        return self.hyper_increase_bps or 10 * self.r_ai_bps

    @property
    def r_min_bps(self) -> int:
        """Least rate in effect."""
        return self.minimum_rate_bps or self.line_rate_bps // 1000


@dataclass(frozen=True, slots=True)
class RoceConfig:
    """Options of one endpoint and of every queue pair on it."""

    mtu_bytes: int = 4096
    """Payload of every packet of a message but the last (PMTU): 256, 512, 1024, 2048 or 4096 [IBTA 9.7]."""
    udp_port: int = 4791
    hop_limit: int = 64
    pkey: int = 0xFFFF
    dscp_data: int = 26
    """Data and ACKs; what RoCE deployments commonly use."""
    dscp_cnp: int = 46
    """CNPs travel in the high class: 46 is what our switches take for it. Deployments commonly say 48."""
    encapsulation: Encapsulation = "srv6"
    """`plain` IPv6, for a fabric that hashes flows (ECMP), or `srv6`: each queue pair's one path is pinned by
    its uSID container, chosen by the same kind of hash."""
    qps: int = 1
    """Queue pairs over which each message is striped, as NCCL_IB_QPS_PER_CONNECTION does."""
    stripe_alignment_bytes: int = 128
    """A stripe's length is a multiple of this but for the last one, as NCCL has it."""
    window_bytes: int = 64 * 4096
    """Payload in flight per connection, over all of its queue pairs. NICs have no window: they rely on PFC to
    keep their frames from being dropped. This one is the same as MRC's, so that the comparison is fair."""
    ack_interval: int = 8
    """Packets between two that ask for an ACK, apart from the last one of each message, which always does."""
    timeout_exponent: int = 14
    """Local ACK timeout: 4.096 us * 2^n [IBTA 9.7.6.1.3]. 14 is 67 ms, perftest's choice; NCCL has 14 to 20
    by version. IBTA lets a NIC wait up to four times as long; ours waits exactly this."""
    retry_count: int = 7
    """Retries without progress, by timeout or NAK, before the queue pair fails; the largest there is."""
    rnr_retry: int = 7
    """The same for RNR NAKs; 7 is without end [IBTA 9.7.5.2.8]."""
    rnr_timer: int = 12
    """Code of the wait that an RNR NAK asks for: 0.64 ms [IBTA Table 45]."""
    receive_credits: int | None = None
    """Receives posted at the start. None: always enough, as for MRC, so that nothing is ever not ready."""
    dcqcn: DcqcnConfig | None = DcqcnConfig()
    """None switches DCQCN off: no CNPs, always line rate."""

    @property
    def kind(self) -> str:
        """The kind of transport. A property: compiled, a ClassVar of a dataclass would be a field."""
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
        """Local ACK timeout, ns; exponent 0 means none."""
        return 4096 << self.timeout_exponent if self.timeout_exponent else None
