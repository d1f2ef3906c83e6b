"""From the short YAML of a topology to a Fabric.

name: lab
planes: 4
t0: 4                                # T0 switches in each plane: one per rack
t1: 4                                # T1 switches in each plane
hosts: 8                             # a number, or a list of {name, rack}
links:
  host:   {rate: 1 Gbit/s}           # NIC to T0
  fabric: {rate: 1 Gbit/s}           # T0 to T1
  except:                            # single links that differ, or are missing
    - {link: [p0-t0-0, p0-t1-2], rate: 100 Mbit/s}
    - {link: [p0-t0-1, p0-t1-2], absent: true}
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address, IPv6Network, NetmaskValueError

from linux.errors import InputError
from topologies.model import (
    Fabric,
    Host,
    Link,
    LinkKind,
    LinkProfile,
    NicPort,
    PortRef,
    Switch,
    SwitchPort,
    Tier,
    link_name,
)
from topologies.usid import MAX_INDEX, MAX_PLANES, Role, UsidPlan
from topologies.yamlfile import Value, YamlMap, parse_yaml

DEFAULT_BLOCK = "fcbb:bb00::/32"
NIC_PREFIX = int(IPv6Address("fd00:6d72:63::"))  # a unique local prefix (RFC 4193) for the NIC ports
DEFAULT_PROFILE = LinkProfile(rate_bps=10**9, delay_ns=0, mtu_bytes=4500)
# 4096 of payload; outer and inner IPv6 80, UDP 8, BTH 12, METH 4, TSETH 4, RETH 16, ImmDt 4, ICRC 4.
MIN_MTU_BYTES = 4096 + 132
MAX_MTU_BYTES = 9202  # a frame of 9216 bytes
MAX_IFNAME = 15  # IFNAMSIZ less its final zero
NAME = re.compile(r"^[a-z][a-z0-9-]*$")


@dataclass(frozen=True, slots=True)
class _HostSpec:
    name: str
    rack: int
    at: Value


def build_fabric(text: str, where: str) -> Fabric:
    """Builds the fabric that a YAML text describes; ``where`` names it in errors.

    Raises InputError with the line of whatever does not make sense.
    """
    doc = parse_yaml(text, where)
    doc.only(("name", "planes", "t0", "t1", "hosts", "block", "links"), "a topology")
    name = doc.require("name", "a topology").as_str("name")
    planes_at = doc.require("planes", "a topology")
    planes = planes_at.as_int("planes", low=1, high=MAX_INDEX)
    if planes > MAX_PLANES:
        raise planes_at.error(f"{planes} planes overflow the uSID's plane field: at most {MAX_PLANES}")
    racks = _count(doc, "t0", "T0s")
    t1_at = doc.require("t1", "a topology")
    t1s = t1_at.as_int("t1", low=0, high=MAX_INDEX + 1)
    if t1s == 0 and racks > 1:
        raise t1_at.error("t1 is 0, so no T0 has an uplink: racks could not reach one another")
    plan = _plan(doc)
    hosts = _host_specs(doc, racks)
    profiles, exceptions = _links(doc)
    builder = _Builder(name, planes, racks, t1s, plan, hosts, profiles, exceptions, doc)
    return builder.build(where)


def _count(doc: YamlMap, key: str, what: str) -> int:
    value = doc.require(key, "a topology")
    if isinstance(value.data, int) and value.data > MAX_INDEX + 1:
        raise value.error(f"{value.data} {what} overflow the uSID's index: at most {MAX_INDEX + 1} of a kind")
    return value.as_int(key, low=1, high=MAX_INDEX + 1)


def _plan(doc: YamlMap) -> UsidPlan:
    if "block" not in doc:
        return UsidPlan(IPv6Network(DEFAULT_BLOCK))
    value = doc["block"]
    try:
        return UsidPlan(IPv6Network(value.as_str("block")))
    except InputError:
        raise
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise value.error(f"block must be a /32 such as {DEFAULT_BLOCK}: {error}") from None


def _host_specs(doc: YamlMap, racks: int) -> list[_HostSpec]:
    value = doc.require("hosts", "a topology")
    if not isinstance(value.data, list):
        count = _count(doc, "hosts", "hosts")
        return [_HostSpec(f"h{i}", i * racks // count, value) for i in range(count)]
    specs: list[_HostSpec] = []
    names: set[str] = set()
    for item in value.data:
        entry = item.as_map("a host")
        entry.only(("name", "rack"), "a host")
        name_at = entry.require("name", "a host")
        name = name_at.as_str("a host's name")
        if not NAME.match(name) or re.match(r"^p\d+-t[01]-", name):
            raise name_at.error(
                f"'{name}' is no host name: small letters, digits and '-', and not a switch's"
            )
        if name in names:
            raise name_at.error(f"two hosts are called '{name}'")
        names.add(name)
        rack = entry.require("rack", "a host").as_int("rack", low=0, high=racks - 1)
        specs.append(_HostSpec(name, rack, name_at))
    if not specs:
        raise value.error("a fabric needs at least one host")
    if len(specs) > MAX_INDEX + 1:
        raise value.error(f"{len(specs)} hosts overflow the uSID's index: at most {MAX_INDEX + 1} of a kind")
    return specs


@dataclass(frozen=True, slots=True)
class _Exception:
    ends: tuple[str, str]
    profile: YamlMap
    absent: bool
    at: Value


def _links(doc: YamlMap) -> tuple[dict[LinkKind, LinkProfile], dict[str, _Exception]]:
    profiles: dict[LinkKind, LinkProfile] = {"host": DEFAULT_PROFILE, "fabric": DEFAULT_PROFILE}
    exceptions: dict[str, _Exception] = {}
    if "links" not in doc:
        return profiles, exceptions
    links = doc["links"].as_map("links")
    links.only(("host", "fabric", "except"), "links")
    kinds: tuple[LinkKind, ...] = ("host", "fabric")
    for kind in kinds:
        if kind in links:
            entry = links[kind].as_map(f"links.{kind}")
            entry.only(("rate", "delay", "mtu"), f"links.{kind}")
            profiles[kind] = _profile(entry, DEFAULT_PROFILE)
    if "except" in links:
        for item in links["except"].as_list("links.except"):
            entry = item.as_map("a link")
            entry.only(("link", "rate", "delay", "mtu", "absent"), "a link")
            at = entry.require("link", "a link")
            ends = [end.as_str("an end of a link") for end in at.as_list("link")]
            if len(ends) != 2:
                raise at.error("a link has two ends, such as [p0-t0-0, p0-t1-2]")
            name = link_name(ends[0], ends[1])
            if name in exceptions:
                raise at.error(f"link {name} is given twice")
            absent = "absent" in entry and entry["absent"].as_bool("absent")
            exceptions[name] = _Exception((ends[0], ends[1]), entry, absent, at)
    return profiles, exceptions


def _profile(entry: YamlMap, base: LinkProfile) -> LinkProfile:
    rate, delay, mtu = base.rate_bps, base.delay_ns, base.mtu_bytes
    if "rate" in entry:
        rate = entry["rate"].as_rate_bps("rate")
        if not 10**6 <= rate <= 10**11:
            raise entry["rate"].error("rate must be from 1 Mbit/s to 100 Gbit/s")
    if "delay" in entry:
        delay = entry["delay"].as_time_ns("delay")
    if "mtu" in entry:
        mtu = entry["mtu"].as_int("mtu", low=MIN_MTU_BYTES, high=MAX_MTU_BYTES)
    return LinkProfile(rate, delay, mtu)


def _mac(tier: int, plane: int, index: int, port: int) -> bytes:
    """A locally administered address that tells whose it is: 02 | tier, plane | index | port."""
    return bytes((0x02, tier << 4 | plane, index >> 8, index & 0xFF, port >> 8, port & 0xFF))


class _Builder:
    """Lays cables first, numbers ports from them, and then makes the immutable nodes."""

    def __init__(
        self,
        name: str,
        planes: int,
        racks: int,
        t1s: int,
        plan: UsidPlan,
        hosts: list[_HostSpec],
        profiles: dict[LinkKind, LinkProfile],
        exceptions: dict[str, _Exception],
        doc: YamlMap,
    ) -> None:
        self.name = name
        self.planes = planes
        self.racks = racks
        self.t1s = t1s
        self.plan = plan
        self.hosts = hosts
        self.profiles = profiles
        self.exceptions = exceptions
        self.doc = doc
        self.links: list[Link] = []
        self.cables: dict[str, list[tuple[PortRef, PortRef]]] = defaultdict(list)
        self.next_port: dict[str, int] = defaultdict(lambda: 1)
        self.macs: dict[PortRef, bytes] = {}

    def build(self, where: str) -> Fabric:
        for plane in range(self.planes):
            self._cable_plane(plane)
        unused = set(self.exceptions) - {link.name for link in self.links}
        for link in sorted(unused):
            if not self.exceptions[link].absent or not self._could_exist(link):
                raise self.exceptions[link].at.error(f"no link {link} in this topology")
        hosts = tuple(self._host(index, spec) for index, spec in enumerate(self.hosts))
        return Fabric(
            self.name, self.planes, hosts, tuple(self._switches()), tuple(self.links), self.plan, where
        )

    def _could_exist(self, name: str) -> bool:
        match = re.fullmatch(r"p(\d+)-t0-(\d+):p(\d+)-t1-(\d+)", name)
        if match is None:
            return False
        plane, rack, other_plane, t1 = (int(group) for group in match.groups())
        return plane == other_plane < self.planes and rack < self.racks and t1 < self.t1s

    def _cable_plane(self, plane: int) -> None:
        for index, spec in enumerate(self.hosts):
            t0 = f"p{plane}-t0-{spec.rack}"
            nic = PortRef(spec.name, plane)
            self._check_ifname(nic, spec.at)
            self.macs[nic] = _mac(0, plane, index, plane)
            self._cable(nic, t0, 1, spec.rack, "host", plane)
        for rack in range(self.racks):
            t0 = f"p{plane}-t0-{rack}"
            uplinks = 0
            for t1 in range(self.t1s):
                far = f"p{plane}-t1-{t1}"
                exception = self.exceptions.get(link_name(t0, far))
                if exception is not None and exception.absent:
                    continue
                near = self._new_port(t0, 1, plane, rack, self.doc["t0"])
                self._cable(near, far, 2, t1, "fabric", plane)
                uplinks += 1
            if uplinks == 0 and self.racks > 1:
                at = next(e.at for e in self.exceptions.values() if e.ends[0] == t0 or e.ends[1] == t0)
                raise at.error(f"{t0} is left without uplinks")

    def _new_port(self, node: str, tier: int, plane: int, index: int, at: Value) -> PortRef:
        ref = PortRef(node, self.next_port[node])
        self.next_port[node] += 1
        self._check_ifname(ref, at)
        self.macs[ref] = _mac(tier, plane, index, ref.port)
        return ref

    def _check_ifname(self, ref: PortRef, at: Value) -> None:
        if len(ref.ifname) > MAX_IFNAME:
            raise at.error(
                f"interface '{ref.ifname}' would have {len(ref.ifname)} characters; Linux takes {MAX_IFNAME}"
            )

    def _cable(
        self, near: PortRef, far_node: str, far_tier: int, far_index: int, kind: LinkKind, plane: int
    ) -> None:
        far = self._new_port(far_node, far_tier, plane, far_index, self.doc["t0" if far_tier == 1 else "t1"])
        profile = self.profiles[kind]
        exception = self.exceptions.get(link_name(near.node, far_node))
        if exception is not None:
            if exception.absent:
                raise exception.at.error(f"{near.node} would lose its only link to plane {plane}")
            profile = _profile(exception.profile, profile)
        self.links.append(Link(near, far, kind, plane, profile))
        self.cables[near.node].append((near, far))
        self.cables[far_node].append((far, near))

    def _host(self, index: int, spec: _HostSpec) -> Host:
        ports = []
        for near, far in self.cables[spec.name]:
            plane = near.port
            address = IPv6Address(NIC_PREFIX | plane << 64 | index + 1)
            usid = UsidPlan.usid(plane, Role.NIC, index)
            mac, t0_mac = self.macs[near], self.macs[far]
            ports.append(NicPort(spec.name, plane, near, mac, address, usid, far.node, t0_mac))
        return Host(spec.name, index, spec.rack, tuple(ports))

    def _switches(self) -> list[Switch]:
        switches: list[Switch] = []
        for plane in range(self.planes):
            tiers: tuple[tuple[Tier, Role, int], ...] = (
                ("t0", Role.T0, self.racks),
                ("t1", Role.T1, self.t1s),
            )
            for tier, role, count in tiers:
                for index in range(count):
                    name = f"p{plane}-{tier}-{index}"
                    ports = tuple(
                        SwitchPort(near.port, near, self.macs[near], far, self.macs[far])
                        for near, far in self.cables[name]
                    )
                    usid = UsidPlan.usid(plane, role, index)
                    switches.append(Switch(name, len(switches) + 1, plane, tier, index, usid, ports))
        return switches
