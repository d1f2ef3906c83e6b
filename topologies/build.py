"""Build a Fabric from a topology file or from its definition, a FabricSpec.

This module also makes a one-plane fabric from another fabric, and converts fabrics to text and back.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.topologies.model import Fabric, Host, Link, NicPort, PortRef, Switch, SwitchPort
from mrclab.topologies.spec import (
    FabricSpec,
    HostSpec,
    LinkException,
    LinkKind,
    LinkProfile,
    Tier,
    parse_switch_name,
    switch_name,
)
from mrclab.topologies.usid import MAX_INDEX, Role, UsidPlan
from mrclab.topologies.yaml_lines import KeyPath, read_yaml

NIC_PREFIX = int(IPv6Address("fd00:6d72:63::"))  # a unique local prefix (RFC 4193) for the NIC ports
MAX_IFNAME = 15  # Linux's IFNAMSIZ is 16 and includes a final zero


_HEIGHTS: dict[Tier, int] = {"t0": 1, "t1": 2, "t2": 3}
"""The height of each tier of switches. Hosts have height 0."""


def refusal_of_name(ifname: str) -> str | None:
    """Return the reason why Linux does not accept an interface's name. Return None for a valid name."""
    if len(ifname) <= MAX_IFNAME:
        return None
    return f"interface '{ifname}' would have {len(ifname)} characters; Linux takes {MAX_IFNAME}"


class SpecError(InputError):
    """A wrong definition of a fabric. ``path`` is the path of the wrong key in the topology file."""

    def __init__(self, message: str, path: KeyPath) -> None:
        super().__init__(message)
        self.path = path


def build_fabric(text: str, where: str) -> Fabric:
    """Return the fabric that a YAML text describes. ``where`` is the text's name in error messages.

    Raise InputError with the line and key of the first mistake.
    """
    # Imported only here: most processes get their fabric from another process and never read a file.
    from mrclab.topologies.file import TopologyFile
    from mrclab.topologies.yaml_model import validated

    document = read_yaml(text, where)
    spec = validated(TopologyFile, document).spec()
    try:
        return build(spec, where)
    except SpecError as error:
        raise document.error(str(error), error.path) from None


def build(spec: FabricSpec, source: str = "") -> Fabric:
    """Return the fabric of a definition. ``source`` is the definition's name in messages.

    Raise SpecError if the definition is wrong.
    """
    return _Builder(spec).build(source)


def nic_numbers(hosts: Sequence[HostSpec]) -> Sequence[int]:
    """Return each host's index in uSIDs: its number in the fabric or, in a large fabric, in its rack."""
    if len(hosts) <= MAX_INDEX + 1:
        return range(len(hosts))
    before: Counter[int] = Counter()
    numbers = []
    for host in hosts:
        numbers.append(before[host.rack])
        before[host.rack] += 1
    return numbers


def _mac(tier: int, plane: int, index: int, port: int) -> bytes:
    """Return a port's MAC address, which is locally administered: 02 | tier, plane | index | port."""
    return bytes((0x02, tier << 4 | plane, index >> 8, index & 0xFF, port >> 8, port & 0xFF))


class _Builder:
    """Build a fabric: first the links with their ports, then the hosts and switches with these ports."""

    def __init__(self, spec: FabricSpec) -> None:
        self.spec = spec
        self.plan = UsidPlan(spec.block)
        self.exceptions: dict[frozenset[str], tuple[int, LinkException]] = {}
        self.used: set[frozenset[str]] = set()
        self.links: list[Link] = []
        self.cables: dict[str, list[tuple[PortRef, PortRef]]] = defaultdict(list)
        self.next_port: dict[str, int] = defaultdict(lambda: 1)
        self.macs: dict[PortRef, bytes] = {}

    def build(self, source: str) -> Fabric:
        spec = self.spec
        if spec.t1s == 0 and spec.t0s > 1:
            raise SpecError("t1 is 0, so no T0 has an uplink: racks could not reach one another", ("t1",))
        self._check_pods()
        self._check_hosts()
        for number, exception in enumerate(spec.exceptions):
            ends = frozenset(exception.ends)
            if ends in self.exceptions:
                raise SpecError(f"link {':'.join(exception.ends)} is given twice", _at(number))
            self.exceptions[ends] = number, exception
        for plane in range(spec.planes):
            self._cable_plane(plane)
        for ends, (number, exception) in self.exceptions.items():
            if ends not in self.used:
                raise SpecError(f"no link {_link_name(exception.ends)} in this topology", _at(number))
        numbers = nic_numbers(spec.hosts)
        hosts = tuple(self._host(index, host, numbers[index]) for index, host in enumerate(spec.hosts))
        return Fabric(
            spec.name,
            spec.planes,
            hosts,
            tuple(self._switches()),
            tuple(self.links),
            self.plan,
            source,
            spec.classes,
            spec.pods,
        )

    def _check_pods(self) -> None:
        spec = self.spec
        if (spec.pods > 1) != (spec.t2s > 0):
            raise SpecError(
                "pods are joined by T2s, and T2s join pods: give both pods (2 or more) and t2, or neither",
                ("pods" if spec.t2s == 0 else "t2",),
            )
        if spec.t0s % spec.pods:
            raise SpecError(f"{spec.t0s} T0s cannot be spread evenly over {spec.pods} pods", ("pods",))
        above = spec.t1s * (spec.pods + spec.t2s)
        if above > MAX_INDEX + 1:
            message = f"{above:,} T1s and T2s in a plane overflow the uSID's index: at most {MAX_INDEX + 1}"
            raise SpecError(message, ("t2",) if spec.t2s else ("t1",))

    def _check_hosts(self) -> None:
        names: set[str] = set()
        racks: Counter[int] = Counter()
        for number, host in enumerate(self.spec.hosts):
            if host.name in names:
                raise SpecError(f"two hosts are called '{host.name}'", ("hosts", number, "name"))
            names.add(host.name)
            racks[host.rack] += 1
            if racks[host.rack] > MAX_INDEX + 1:
                raise SpecError(
                    f"rack {host.rack} overflows the uSID's index: at most {MAX_INDEX + 1} hosts", ("hosts",)
                )
            if host.rack >= self.spec.t0s:
                raise SpecError(
                    f"rack must be from 0 to {self.spec.t0s - 1}, not {host.rack}", ("hosts", number, "rack")
                )

    def _exception(self, a: str, b: str) -> tuple[int, LinkException] | None:
        found = self.exceptions.get(frozenset((a, b)))
        if found is not None:
            self.used.add(frozenset((a, b)))
        return found

    def _cable_plane(self, plane: int) -> None:
        spec = self.spec
        for index, host in enumerate(spec.hosts):
            nic = PortRef(host.name, plane)
            self._check_ifname(nic, ("hosts", index, "name"))
            self.macs[nic] = _mac(0, plane, index, plane)
            t0 = switch_name(plane, "t0", host.rack)
            exception = self._exception(host.name, t0)
            if exception is not None and exception[1].absent:
                message = f"{host.name} would lose its only link to plane {plane}"
                raise SpecError(message, _at(exception[0]))
            self._cable(nic, plane, "t0", host.rack, exception)
        for rack in range(spec.t0s):
            self._cable_uplinks(plane, rack)
        for index in range(spec.pods * spec.t1s if spec.t2s else 0):
            self._cable_core(plane, index)

    def _cable_uplinks(self, plane: int, rack: int) -> None:
        t0 = switch_name(plane, "t0", rack)
        last_absent: int | None = None
        uplinks = 0
        first = self.spec.pod_of(rack) * self.spec.t1s
        for index in range(first, first + self.spec.t1s):
            exception = self._exception(t0, switch_name(plane, "t1", index))
            if exception is not None and exception[1].absent:
                last_absent = exception[0]
                continue
            near = self._new_port(plane, "t0", rack)
            self._cable(near, plane, "t1", index, exception)
            uplinks += 1
        if uplinks == 0 and last_absent is not None and self.spec.t0s > 1:
            raise SpecError(f"{t0} is left without uplinks", _at(last_absent))

    def _cable_core(self, plane: int, t1: int) -> None:
        """Link a T1 to its group of T2s. T1s with the same number in their pods have the same group."""
        spec, name = self.spec, switch_name(plane, "t1", t1)
        for index in spec.t2s_above(t1):
            exception = self._exception(name, switch_name(plane, "t2", index))
            if exception is None or not exception[1].absent:
                self._cable(self._new_port(plane, "t1", t1), plane, "t2", index, exception)

    def _new_port(self, plane: int, tier: Tier, index: int) -> PortRef:
        node = switch_name(plane, tier, index)
        ref = PortRef(node, self.next_port[node])
        self.next_port[node] += 1
        self.macs[ref] = _mac(_HEIGHTS[tier], plane, index, ref.port)
        return ref

    def _check_ifname(self, ref: PortRef, path: KeyPath) -> None:
        if refusal := refusal_of_name(ref.ifname):
            raise SpecError(refusal, path)

    def _cable(
        self, near: PortRef, plane: int, tier: Tier, index: int, exception: tuple[int, LinkException] | None
    ) -> None:
        far = self._new_port(plane, tier, index)
        kind: LinkKind = "host" if tier == "t0" else "fabric"
        profile = self.spec.host_links if kind == "host" else self.spec.fabric_links
        if tier == "t2" and self.spec.core_links is not None:
            profile = self.spec.core_links
        if exception is not None:
            profile = exception[1].profile(profile)
        self.links.append(Link(near, far, kind, plane, profile))
        self.cables[near.node].append((near, far))
        self.cables[far.node].append((far, near))

    def _host(self, index: int, host: HostSpec, number: int) -> Host:
        """Return a host. ``number`` is the index of its NIC in uSIDs."""
        ports = []
        for near, far in self.cables[host.name]:
            plane = near.port
            address = IPv6Address(NIC_PREFIX | plane << 64 | index + 1)
            usid = UsidPlan.usid(plane, Role.NIC, number)
            mac, t0_mac = self.macs[near], self.macs[far]
            ports.append(NicPort(host.name, plane, near, mac, address, usid, far.node, t0_mac))
        return Host(host.name, index, host.rack, tuple(ports))

    def _switches(self) -> list[Switch]:
        switches: list[Switch] = []
        spec = self.spec
        t1s = spec.pods * spec.t1s
        # Each row has the tier, the role in the uSID, the number of switches per plane, and the first index
        # in the uSID. The indices of T2s follow the indices of T1s.
        tiers: tuple[tuple[Tier, Role, int, int], ...] = (
            ("t0", Role.T0, spec.t0s, 0),
            ("t1", Role.T1, t1s, 0),
            ("t2", Role.T1, spec.t1s * spec.t2s, t1s),
        )
        for plane in range(spec.planes):
            for tier, role, count, before in tiers:
                for index in range(count):
                    name = switch_name(plane, tier, index)
                    ports = tuple(
                        SwitchPort(near.port, near, self.macs[near], far, self.macs[far])
                        for near, far in self.cables[name]
                    )
                    usid = UsidPlan.usid(plane, role, before + index)
                    switches.append(Switch(name, len(switches) + 1, plane, tier, index, usid, ports))
        return switches


def _at(exception: int) -> KeyPath:
    return ("links", "except", exception, "link")


def _link_name(ends: tuple[str, str]) -> str:
    """Return the name of a link. The end in the lower tier comes first. Hosts are below all tiers."""

    def height(node: str) -> int:
        parsed = parse_switch_name(node)
        return 0 if parsed is None else _HEIGHTS[parsed[1]]

    return ":".join(sorted(ends, key=height))


def spec_of(fabric: Fabric) -> FabricSpec:
    """Return a definition from which ``build`` makes an equal fabric."""
    t0s, all_t1s, all_t2s = (
        sum(switch.tier == tier for switch in fabric.switches) // fabric.planes for tier in ("t0", "t1", "t2")
    )
    t1s = all_t1s // fabric.pods
    usual = {kind: _usual(fabric, kind) for kind in ("host", "fabric")}
    differing = [
        LinkException((link.a.node, link.b.node), False, *_values(link.profile))
        for link in fabric.links
        if link.profile != usual[link.kind]
    ]
    whole = FabricSpec(
        fabric.name,
        fabric.planes,
        t0s,
        t1s,
        tuple(HostSpec(host.name, host.rack) for host in fabric.hosts),
        fabric.plan.block,
        usual["host"],
        usual["fabric"],
        tuple(differing),
        fabric.classes,
        fabric.pods,
        all_t2s // t1s if t1s else 0,
    )
    absent = [LinkException(ends, absent=True) for ends in whole.inner_links() if not fabric.has_link(*ends)]
    return replace(whole, exceptions=(*differing, *absent))


def _usual(fabric: Fabric, kind: LinkKind) -> LinkProfile:
    """Return the profile (rate, delay, MTU) that most links of this kind have."""
    profiles = Counter(link.profile for link in fabric.links if link.kind == kind)
    return profiles.most_common(1)[0][0] if profiles else _usual(fabric, "host")


def _values(profile: LinkProfile) -> tuple[int, int, int]:
    return profile.rate_bps, profile.delay_ns, profile.mtu_bytes


def one_plane(fabric: Fabric) -> Fabric:
    """Return the fabric with all its bandwidth in one plane, for transports that use a single path.

    The new fabric has the same hosts, and as many T0s and T1s as one plane of the old fabric. The rate of
    each link is multiplied by the number of planes. Exceptions for single links are taken from plane 0.
    """
    if fabric.planes == 1:
        return fabric
    spec = spec_of(fabric)

    def faster(profile: LinkProfile) -> LinkProfile:
        return replace(profile, rate_bps=profile.rate_bps * fabric.planes)

    exceptions = tuple(
        replace(entry, rate_bps=entry.rate_bps and entry.rate_bps * fabric.planes)
        for entry in spec.exceptions
        if _plane(entry) == 0
    )
    spec = replace(
        spec,
        name=f"{fabric.name}-1plane",
        planes=1,
        host_links=faster(spec.host_links),
        fabric_links=faster(spec.fabric_links),
        exceptions=exceptions,
    )
    return build(spec, f"{fabric.name} in one plane")


def _plane(entry: LinkException) -> int:
    return next(switch[0] for end in entry.ends if (switch := parse_switch_name(end)) is not None)


def fabric_text(fabric: Fabric) -> str:
    """Return a text from which ``fabric_from_text`` makes an equal fabric, also in another process.

    ``fabric_from_text`` does not need the topology file.
    """
    spec = spec_of(fabric)
    return json.dumps({**asdict(spec), "block": str(spec.block)})


def fabric_from_text(text: str) -> Fabric:
    """Return the fabric from a text of ``fabric_text``. Raise InputError for any other text."""
    try:
        data: dict[str, Any] = json.loads(text)
        spec = FabricSpec(
            **{
                **data,
                "hosts": tuple(HostSpec(**host) for host in data["hosts"]),
                "block": IPv6Network(data["block"]),
                "host_links": LinkProfile(**data["host_links"]),
                "fabric_links": LinkProfile(**data["fabric_links"]),
                "core_links": LinkProfile(**core) if (core := data.get("core_links")) else None,
                "exceptions": tuple(_exception(entry) for entry in data["exceptions"]),
                "classes": tuple((int(dscp), str(name)) for dscp, name in data["classes"]),
            }
        )
        return build(spec, spec.name)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"this text describes no fabric: {error!r}") from None


def _exception(entry: dict[str, Any]) -> LinkException:
    a, b = entry["ends"]
    return LinkException(**{**entry, "ends": (str(a), str(b))})
