"""Read the topology of an exercise, in the format of p4lang/tutorials: hosts, switches, and links.

The file is a JSON object with `hosts` (name: `ip`, `mac`, `commands`), `switches` (name: `runtime_json`,
`program`, `cpu_port`) and `links`. A link is a list of two ends, latency (ms, or text such as "2ms") and
bandwidth (Mbit/s). An end is a host, or `s1-p2` for port 2 of switch s1. Paths are relative to the exercise.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrclab.linux.errors import BadInputError

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,8}$")
_MAC = re.compile(r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")
_TIME_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "": 10**6}


@dataclass(frozen=True)
class Host:
    """A host: its address with prefix length, its MAC, and commands that it runs at the start."""

    name: str
    ip: str
    mac: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Switch:
    """A switch. `runtime` is the file with its program and entries; None if a controller sets both."""

    name: str
    device_id: int
    runtime: str | None = None
    program: str | None = None
    cpu_port: int | None = None


@dataclass(frozen=True)
class End:
    """An end of a link. `port` is the switch's port number, or 0 for a host."""

    node: str
    port: int


@dataclass(frozen=True)
class Link:
    """A link. Delay and rate are for each direction. A rate of 0 means no limit."""

    a: End
    b: End
    delay_ns: int
    rate_bps: int


@dataclass(frozen=True)
class Topology:
    """The hosts, switches and links of an exercise."""

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]

    def ports(self, switch: str) -> list[int]:
        """Return the sorted numbers of a switch's ports that have a link."""
        return sorted(e.port for link in self.links for e in (link.a, link.b) if e.node == switch)


def topologies(directory: Path) -> list[Path]:
    """Return the path of an exercise's topology.json, or if there is none, of all in its subdirectories."""
    here = directory / "topology.json"
    return [here] if here.is_file() else sorted(directory.glob("*/topology.json"))


def find_topology(directory: Path) -> Path:
    """Return the path of an exercise's topology. If there are several, use the one that the Makefile names.

    In p4lang/tutorials, a Makefile has a line such as ``TOPO = pod-topo/topology.json``. Raise BadInputError
    if there is no topology, or if there are several and no such line.
    """
    if not directory.is_dir():
        raise BadInputError(f"no directory {directory}")
    found = topologies(directory)
    if not found:
        raise BadInputError(f"{directory} has no topology.json: name one with --topology")
    if len(found) > 1:
        if (named := _of_makefile(directory)) in found:
            return named
        names = ", ".join(str(p.relative_to(directory)) for p in found)
        raise BadInputError(f"{directory} has several topologies ({names}): choose with --topology")
    return found[0]


def _of_makefile(directory: Path) -> Path:
    try:
        text = (directory / "Makefile").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return directory
    names = re.findall(r"^TOPO\s*[:?]?=\s*(\S+)", text, re.MULTILINE)
    return directory / names[-1] if names else directory


def read_topology(path: Path) -> Topology:
    """Read a topology. Raise BadInputError if the file is missing or wrong."""
    try:
        raw = json.loads(path.read_text())
    except OSError as exc:
        raise BadInputError(f"{path}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise BadInputError(f"{path}: not JSON: {exc}") from exc
    try:
        return _topology(raw)
    except BadInputError as exc:
        raise BadInputError(f"{path}: {exc}") from exc
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as exc:
        raise BadInputError(f"{path}: not a topology: {type(exc).__name__}: {exc}") from exc


def _topology(raw: Any) -> Topology:
    hosts = tuple(_host(name, h) for name, h in raw["hosts"].items())
    switches = tuple(
        Switch(
            _named(name), i, s.get("runtime_json"), s.get("program"),
            int(s["cpu_port"]) if "cpu_port" in s else None,
        )
        for i, (name, s) in enumerate(raw["switches"].items())
    )  # fmt: skip
    names = [*(h.name for h in hosts), *(s.name for s in switches)]
    if len(set(names)) != len(names):
        raise BadInputError("two nodes have the same name")
    known = {h.name: False for h in hosts} | {s.name: True for s in switches}
    links = tuple(_link(entry, known) for entry in raw["links"])
    used: set[End] = set()
    for end in (e for link in links for e in (link.a, link.b)):
        if end in used:
            what = f"port {end.port} of {end.node}" if known[end.node] else f"host {end.node}"
            raise BadInputError(f"{what} has two links")
        used.add(end)
    return Topology(hosts, switches, links)


def _named(name: str) -> str:
    if not _NAME.match(name):
        raise BadInputError(f"'{name}' is no name for a node: letters and digits, nine at most")
    return name


def _host(name: str, raw: Any) -> Host:
    try:
        ipaddress.ip_interface(raw["ip"])
    except ValueError as exc:
        raise BadInputError(f"host {name}: {exc}") from exc
    if not _MAC.match(raw["mac"]):
        raise BadInputError(f"host {name}: '{raw['mac']}' is no MAC address")
    return Host(_named(name), raw["ip"], raw["mac"], tuple(raw.get("commands") or ()))


def _link(raw: list[Any], known: dict[str, bool]) -> Link:
    ends = []
    for text in raw[:2]:
        node, dash, port = text.partition("-p")
        if node not in known:
            raise BadInputError(f"link to '{text}': no such node")
        if known[node] != bool(dash) or (dash and not port.isdigit()):
            raise BadInputError(f"'{text}' is no end of a link: expects a host, or a switch's port as s1-p2")
        ends.append(End(node, int(port) if dash else 0))
    rate = raw[3] if len(raw) > 3 and raw[3] is not None else 0
    return Link(ends[0], ends[1], _delay(raw[2] if len(raw) > 2 else 0), round(float(rate) * 1e6))


def _delay(value: Any) -> int:
    found = re.match(r"^\s*([0-9.]+)\s*(us|ms|s|)\s*$", str(value))
    if found is None:
        raise BadInputError(f"'{value}' is no latency: a number of ms, or such as '10us'")
    return round(float(found[1]) * _TIME_NS[found[2]])
