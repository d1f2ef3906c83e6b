"""The denylist: which links nobody should send over, as Clustermapper writes it and hosts load it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hosts.clustermapper.inference import Verdict
from hosts.endpoint import Endpoint
from hosts.mrc import Endpoint as MrcEndpoint
from linux.errors import InputError
from topologies import Fabric

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Denylist:
    """Links by name, and the verdicts that they follow from."""

    links: frozenset[str] = frozenset()
    verdicts: tuple[Verdict, ...] = ()
    t_ns: int = 0

    @classmethod
    def of(cls, fabric: Fabric, verdicts: Iterable[Verdict], t_ns: int) -> Denylist:
        """What follows from verdicts: a bad switch takes its links along."""
        found = tuple(verdicts)
        links = {link.name for link in fabric.links for v in found if _has(v.place, link.name)}
        return cls(frozenset(links), found, t_ns)

    def save(self, path: Path) -> None:
        """Replaces the file in one step, so that a reader sees the old list or the new one."""
        content = {
            "schema": SCHEMA,
            "t_ns": self.t_ns,
            "links": sorted(self.links),
            "verdicts": [asdict(v) for v in self.verdicts],
        }
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Denylist:
        """The list in a file; an empty one where there is no file. Raises InputError on anything else."""
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}, not {SCHEMA}")
            verdicts = tuple(Verdict(**verdict) for verdict in data["verdicts"])
            return cls(frozenset(map(str, data["links"])), verdicts, int(data["t_ns"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"not a denylist: {error}", where=str(path)) from None


def _has(place: str, link: str) -> bool:
    return place == link or any(node == place or node.startswith(f"{place}-t") for node in link.split(":"))


def denied_evs(fabric: Fabric, src: str, dst: str, links: Collection[str]) -> tuple[int, ...]:
    """The EVs between two hosts whose path uses one of the links, in either direction."""
    bad = frozenset(links)
    return tuple(path.ev for path in fabric.paths(src, dst) if not bad.isdisjoint(path.links))


def apply_denylist(
    endpoint: Endpoint, qpn: int, fabric: Fabric, src: str, dst: str, links: Collection[str], now_ns: int
) -> tuple[int, ...]:
    """Has a queue pair send nothing over denied links, and all others be used again; returns the denied EVs.

    Does nothing on a transport that has no EVs to deny.
    """
    denied = denied_evs(fabric, src, dst, links)
    if isinstance(endpoint, MrcEndpoint):
        endpoint.allow((p.ev for p in fabric.paths(src, dst) if p.ev not in denied), now_ns, qpn)
        endpoint.deny(denied, now_ns, qpn)
    return denied
