"""Table entries and the other state that a control plane writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Exact:
    """Matches one value."""

    value: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number == self.value


@dataclass(frozen=True)
class Prefix:
    """Matches the first `length` bits of a value."""

    value: int
    length: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        rest = width - self.length
        return number >> rest == self.value >> rest


@dataclass(frozen=True)
class Masked:
    """Matches the bits of a value that are set in the mask."""

    value: int
    mask: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number & self.mask == self.value & self.mask


@dataclass(frozen=True)
class Between:
    """Matches low..high, both included."""

    low: int
    high: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return self.low <= number <= self.high


Key = tuple[Exact | Prefix | Masked | Between, ...]


@dataclass(frozen=True)
class Rule:
    """A table entry. Of several that match, the longest prefix wins, else the highest priority.

    In a table with an action profile it has a member or a group by id, and no action.
    """

    key: Key
    action: str = ""
    args: tuple[int, ...] = ()
    priority: int = 0
    member: int | None = None
    group: int | None = None


@dataclass
class Profile:
    """An action profile: members by id, and groups of member ids in the order the hash counts them."""

    members: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CloneSession:
    """A clone session: port and instance of each copy, its bytes (0: all), and its class of service."""

    copies: Sequence[tuple[int, int]]
    length: int = 0
    class_of_service: int = 0


@dataclass
class Counts:
    """A counter cell."""

    packets: int = 0
    bytes: int = 0


@dataclass
class Meter:
    """A meter cell (RFC 2698, colour-blind): rates per second, bursts, and what its buckets have."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int
    tokens: list[float] = field(default_factory=list)
    last_us: int = 0

    def colour(self, size: int, now_us: int) -> int:
        """Green, yellow or red (0, 1, 2) for a frame of so many tokens."""
        bursts, elapsed = (self.peak_burst, self.committed_burst), now_us - self.last_us
        if not self.tokens:
            self.tokens, elapsed = [float(b) for b in bursts], 0
        self.last_us = now_us
        for i, rate in enumerate((self.peak, self.committed)):
            self.tokens[i] = min(self.tokens[i] + rate * elapsed / 1e6, bursts[i])
        if self.tokens[0] < size:
            return 2
        self.tokens[0] -= size
        if self.tokens[1] < size:
            return 1
        self.tokens[1] -= size
        return 0
