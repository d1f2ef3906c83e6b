"""The workloads that a scenario may name, with their keys; what the ranks then do is in hosts/collectives."""

from __future__ import annotations

from experiments.spec.keys import Key

_DURATION = Key("duration", "time", "how long it sends, after the warm-up", 1_000_000_000, low=10_000_000)
_MESSAGE = Key("message_bytes", "size", "of a message", 8192, low=32, high=16 << 20)
_DEPTH = Key("depth", "int", "messages in flight at most, of each flow", 16, low=1, high=64)
_RATE = Key("rate", "rate", "of each flow's payload, paced; 0 bit/s: as fast as it goes", 0, high=10**11)
_RANKS = Key("ranks", "int", "how many hosts take part, rack by rack in turns; 0: all", 0, high=1024)
_JOB_RANKS = Key("ranks", "int", "how many take part, on hosts rack by rack in turns; 0: all", 0, high=1024)
_PER_HOST = Key("ranks_per_host", "int", "how many ranks share a host and its NIC", 1, low=1, high=64)
_SRC = Key("src", "text", "a host; auto: the first of the first rack", "auto")
_DST = Key("dst", "text", "a host; auto: the first of the last rack", "auto")
_SIZES = Key("sizes", "sizes", "bytes of each rank's buffer, swept", [1 << 20], low=4, high=1 << 30)
_ITERATIONS = Key("iterations", "int", "operations of each size that count", 5, low=1, high=100_000)
_WARM = Key("warmup_iterations", "int", "operations of each size before those", 1, low=0, high=1000)
_DTYPE = Key("dtype", "choice", "of the elements", "float32", choices=("float32", "int32"))
_COLLECTIVE = (_JOB_RANKS, _PER_HOST, _SIZES, _ITERATIONS, _WARM, _DTYPE)

WORKLOADS: dict[str, tuple[Key, ...]] = {
    "stream": (_SRC, _DST, _MESSAGE, _RATE, _DEPTH, _DURATION),
    "bidirectional": (_SRC, _DST, _MESSAGE, _RATE, _DEPTH, _DURATION),
    "join": (
        _SRC,
        _DST,
        Key("second_src", "text", "the host that the second flow comes from", ""),
        Key("second_dst", "text", "the host that it goes to", ""),
        Key("second_at", "time", "when it begins, after the start of the measurement", 1_000_000_000),
        Key("second_rate", "rate", "of its payload, paced; 0 bit/s: as fast as it goes", 0, high=10**11),
        _MESSAGE,
        _RATE,
        _DEPTH,
        _DURATION,
    ),
    "request-response": (
        _SRC,
        _DST,
        _MESSAGE,
        Key("response_bytes", "size", "of an answer", 8192, low=32, high=16 << 20),
        _DURATION,
    ),
    "permutation": (_RANKS, _MESSAGE, _RATE, _DEPTH, _DURATION),
    "incast": (
        _DST,
        Key("senders", "int", "how many hosts send to it; 0: all that can", 0, high=1024),
        Key("victim", "bool", "one more flow, from a host that takes no part to the neighbour of dst", False),
        _MESSAGE,
        _RATE,
        _DEPTH,
        _DURATION,
    ),
    "all-reduce": _COLLECTIVE,
    "all-gather": _COLLECTIVE,
    "all-to-all": _COLLECTIVE,
    "training": (
        _JOB_RANKS,
        _PER_HOST,
        Key("size", "size", "bytes of gradients that a step all-reduces", 1 << 20, low=4, high=1 << 30),
        Key("compute", "time", "how long each step computes before that", 5_000_000),
        Key("steps", "int", "how many", 50, low=1, high=1_000_000),
        _DTYPE,
    ),
}
"""By kind. The flows (stream to incast) send for a duration, the others are over when they are done."""

FLOWS = ("stream", "bidirectional", "join", "permutation", "incast")
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all")
