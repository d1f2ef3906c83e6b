"""The denylist: the links over which hosts must not send. Clustermapper writes it, and hosts read it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrclab.hosts.clustermapper.inference import Verdict
from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric
from mrclab.topologies.ev_paths import structured_paths
from mrclab.topologies.model import Path as FabricPath

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Denylist:
    """Names of denied links, and the verdicts because of which these links are denied."""

    links: frozenset[str] = frozenset()
    verdicts: tuple[Verdict, ...] = ()
    t_ns: int = 0

    @classmethod
    def of(cls, fabric: Fabric, verdicts: Iterable[Verdict], t_ns: int) -> Denylist:
        """Return the denylist for these verdicts. If a switch is bad, all its links are denied."""
        found = tuple(verdicts)
        links = {link.name for link in fabric.links for v in found if _has(v.place, link.name)}
        return cls(frozenset(links), found, t_ns)

    def save(self, path: Path) -> None:
        """Replace the file in one step. A concurrent reader gets either the old or the new list."""
        content = {
            "schema": SCHEMA,
            "t_ns": self.t_ns,
            "links": sorted(self.links),
            "verdicts": [asdict(v) for v in self.verdicts],
        }
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Denylist:
        """Read the list from a file. Without a file, the list is empty. Raise InputError for a bad file."""
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


def denied_evs(paths: Iterable[FabricPath], links: Collection[str]) -> tuple[int, ...]:
    """Return the EVs of all paths that use one of the links, in either direction."""
    bad = frozenset(links)
    return tuple(path.ev for path in paths if not bad.isdisjoint(path.links))


def apply_denylist(
    endpoint: Endpoint, qpn: int, fabric: Fabric, src: str, dst: str, links: Collection[str], now_ns: int
) -> tuple[int, ...]:
    """Make a queue pair avoid the denied links and use all others. Return the denied EVs.

    On a transport without EVs this has no effect.
    """
    paths = fabric.paths(src, dst)
    if isinstance(endpoint, MrcEndpoint) and endpoint.config.ev_mode == "structured":
        paths = structured_paths(fabric, src, dst)
    denied = denied_evs(paths, links)
    if isinstance(endpoint, MrcEndpoint):
        endpoint.allow((p.ev for p in paths if p.ev not in denied), now_ns, qpn)
        endpoint.deny(denied, now_ns, qpn)
    return denied
