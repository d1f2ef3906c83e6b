"""Records of faults: their places and times, and the fault log, a file with these records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path as FilePath
from typing import Any

from mrclab.faults.kinds import ALL_KINDS
from mrclab.linux.errors import InputError
from mrclab.topologies import Path


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault as it was made.

    The four times are CLOCK_MONOTONIC ns: before and after making the fault, before and after undoing it.
    ``where`` names a link (``p0-t0-0:p0-t1-2``), a switch, a NIC's port (``h0-eth1``) or a plane (``p0``).
    ``direction`` is ``both``; for a link it can be ``up`` (away from the hosts) or ``down``. A fault that was
    not undone has only the first two times. ``params`` are the parameters of the fault's kind.
    """

    kind: str
    where: str
    t_before_ns: int
    t_after_ns: int
    restore_before_ns: int | None = None
    restore_after_ns: int | None = None
    direction: str = "both"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def middle_ns(self) -> int:
        """The middle of the time in which the fault was made. A fault's times count from this middle."""
        return (self.t_before_ns + self.t_after_ns) // 2

    @property
    def half_width_ns(self) -> int:
        """The largest distance of the fault's true time from `middle_ns`, rounded up."""
        return (self.t_after_ns - self.t_before_ns + 1) // 2

    @property
    def takes_share(self) -> bool:
        """True if the fault affects only a share of the frames."""
        return bool(self.params.get("ratio", 1.0) < 1)

    @property
    def lets_through(self) -> bool:
        """True if some frames pass the broken place.

        Either the kind of fault lets frames pass, or the fault affects only a share of the frames.
        """
        kind = ALL_KINDS.get(self.kind)
        return self.takes_share or (kind is not None and kind.lets_through)

    def breaks(self, path: Path) -> bool:
        """Return True if data on this path passes the broken place."""
        ends = (f"{node}-eth{path.plane}" for node in (path.nodes[0], path.nodes[-1]))
        if self.where in (*path.nodes, *ends, f"p{path.plane}"):
            return True
        if self.where not in path.links:
            return False
        if self.direction == "both":
            return True
        a = self.where.split(":")[0]  # in a link's name the end nearer to the hosts comes first
        up = path.nodes[path.links.index(self.where)] == a
        return up == (self.direction == "up")

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the form of an entry of faults.json and of a trial's ``fault``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FaultRecord:
        """Return the record that ``to_dict`` described. Raise KeyError or TypeError for other data."""
        return cls(**data)


def save_faults(path: FilePath | str, faults: Sequence[FaultRecord]) -> None:
    """Write the records to a file."""
    text = json.dumps([fault.to_dict() for fault in faults], indent=2)
    FilePath(path).write_text(text + "\n", encoding="utf-8", newline="\n")


def load_faults(path: FilePath | str) -> tuple[FaultRecord, ...]:
    """Read a fault log. Raise InputError if the file is not a fault log."""
    try:
        entries = json.loads(FilePath(path).read_text(encoding="utf-8"))
        return tuple(FaultRecord.from_dict(entry) for entry in entries)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"not a fault log: {error}", where=str(path)) from None
