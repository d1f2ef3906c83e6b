"""Two measures of a stream that was sprayed over many paths."""

from collections.abc import Sequence


def evenness(packets: Sequence[int]) -> float:
    """Return the load of the busiest path, divided by the mean load. Perfect spraying gives 1.0.

    `packets` has the number of packets of each path, including paths with 0 packets.
    """
    return max(packets) * len(packets) / sum(packets)


def reordering(psns: Sequence[int]) -> float:
    """Return the share of packets that arrive after a packet with a higher number.

    `psns` are the packets' numbers in the order of arrival: [0, 1, 2] is 0.0, [0, 2, 1] is 1/3.
    """
    late = 0
    highest = -1
    for psn in psns:
        late += psn < highest
        highest = max(highest, psn)
    return late / len(psns)
