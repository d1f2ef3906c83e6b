"""The topology file: its keys with their checks and default values, and its JSON schema.

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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from mrclab.topologies.spec import FabricSpec, HostSpec, LinkException, LinkProfile, parse_switch_name
from mrclab.topologies.units import shown
from mrclab.topologies.usid import BLOCK_PREFIX_LEN, MAX_HOSTS, MAX_INDEX, MAX_PLANES
from mrclab.topologies.yaml_model import Number, Rate, Time, WholeNumber, YamlModel, wrong

DEFAULT_BLOCK = "fcbb:bb00::/32"
DEFAULT_RATE_BPS = 10**9
DEFAULT_MTU_BYTES = 4500
# Bytes of a full packet: payload 4096; headers 132 = IPv6 (outer, inner) 80, UDP 8, BTH 12, METH 4, TSETH 4,
# RETH 16, ImmDt 4, ICRC 4.
MIN_MTU_BYTES = 4096 + 132
MAX_MTU_BYTES = 9202  # with the Ethernet header, such a packet is a frame of 9216 bytes
DSCP_PATTERN = "^([0-9]|[1-5][0-9]|6[0-3])$"
HOST_NAME = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class _Count(WholeNumber):
    """A number of planes or switches. The width of the uSID's field for this number limits the number."""

    noun: str = ""
    field: str = "index"

    def _check(self, value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value > self.high:
            raise ValueError(
                f"{shown(value)} {self.noun} overflow the uSID's {self.field}: at most {self.high}"
            )
        return WholeNumber._check(self, value)


def _dscp(text: str) -> str:
    if not re.fullmatch(DSCP_PATTERN, text):
        raise ValueError(f"a DSCP is a number from 0 to 63, not {shown(text)}")
    return text


TrafficClass = Literal["data", "trimmable", "high", "control"]
Dscp = Annotated[str, AfterValidator(_dscp), WithJsonSchema({"type": "string", "pattern": DSCP_PATTERN})]
Classes = dict[Dscp, TrafficClass]
"""The key ``classes`` of topology files and scenarios: the DSCPs whose traffic class is not the default."""


def switch_map(classes: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    """Return the traffic classes in the form of ``FabricSpec.classes``: sorted pairs (DSCP, class)."""
    return tuple(sorted((int(dscp), name) for dscp, name in classes.items()))


MIN_RATE_BPS, MAX_RATE_BPS = 10**6, 10**12
LinkRate = Annotated[int, Rate(MIN_RATE_BPS, MAX_RATE_BPS)]
LinkDelay = Annotated[int, Time()]
LinkMtu = Annotated[int, WholeNumber(MIN_MTU_BYTES, MAX_MTU_BYTES)]


class LinkKindFile(YamlModel):
    """The keys ``links.host``, ``links.fabric`` and ``links.core``: the properties of all links of a kind."""

    rate: LinkRate = Field(default=DEFAULT_RATE_BPS, description="bandwidth each way (default 1 Gbit/s)")
    delay: LinkDelay = Field(default=0, description="propagation delay")
    mtu: LinkMtu = Field(default=DEFAULT_MTU_BYTES, description="largest IP packet, in bytes")

    def profile(self) -> LinkProfile:
        """Return the profile of these links."""
        return LinkProfile(self.rate, self.delay, self.mtu)


class LinkExceptionFile(YamlModel):
    """An item of ``links.except``: a link that is missing, or differs from the other links of its kind."""

    link: list[str] = Field(description="its two nodes, such as [p0-t0-0, p0-t1-2]")
    rate: LinkRate | None = Field(default=None, description="as in links.fabric")
    delay: LinkDelay | None = Field(default=None, description="as in links.fabric")
    mtu: LinkMtu | None = Field(default=None, description="as in links.fabric")
    absent: bool = Field(default=False, description="true: there is no such link")

    @field_validator("link")
    @classmethod
    def _two_ends(cls, ends: list[str]) -> list[str]:
        if len(ends) != 2:
            raise ValueError("a link has two ends, such as [p0-t0-0, p0-t1-2]")
        return ends

    def exception(self) -> LinkException:
        """Return this item as a ``LinkException``."""
        a, b = self.link
        return LinkException((a, b), self.absent, self.rate, self.delay, self.mtu)


class LinksFile(YamlModel):
    """The key ``links``: the properties of each kind of links, and exceptions for single links."""

    host: LinkKindFile = Field(default_factory=LinkKindFile, description="links from NIC to T0")
    fabric: LinkKindFile = Field(default_factory=LinkKindFile, description="links from T0 to T1")
    core: LinkKindFile | None = Field(
        default=None, description="links from T1 to T2, if they differ from links.fabric"
    )
    exceptions: list[LinkExceptionFile] = Field(
        default_factory=list, alias="except", description="single links that differ, or are missing"
    )


class HostFile(YamlModel):
    """An item of the list ``hosts``: one host and its rack."""

    name: str = Field(description="small letters, digits and '-', a letter first")
    rack: Annotated[int, WholeNumber(0, MAX_INDEX)] = Field(description="its T0 in each plane, from 0")

    @field_validator("name")
    @classmethod
    def _host_name(cls, name: str) -> str:
        if not HOST_NAME.fullmatch(name) or parse_switch_name(name):
            raise ValueError(
                f"{shown(name)} is no host name: small letters, digits and '-', and not a switch's"
            )
        return name


class TopologyFile(YamlModel):
    """The top level of a topology file."""

    what = "a topology"

    name: str = Field(description="of the topology")
    planes: Annotated[int, _Count(1, MAX_PLANES, "planes", "plane field")] = Field(
        description="each NIC has a port to each"
    )
    t0: Annotated[int, _Count(1, MAX_INDEX + 1, "T0s")] = Field(
        description="T0 switches in each plane: one per rack"
    )
    t1: Annotated[int, _Count(0, MAX_INDEX + 1, "T1s")] = Field(
        description="T1 switches in each plane, each linked to every T0; with pods, in each pod of a plane"
    )
    pods: Annotated[int, WholeNumber(1, MAX_INDEX + 1)] = Field(
        default=1,
        description="groups of racks with T1s of their own, joined by T2s: three tiers (target sim only)",
    )
    t2: Annotated[int, _Count(0, MAX_INDEX + 1, "T2s")] = Field(
        default=0,
        description="T2 switches for each T1 of a pod: T1 number j of every pod is linked to the same ones",
    )
    hosts: Annotated[int, WholeNumber(1, MAX_HOSTS)] | list[HostFile] = Field(
        description="a number, spread over the racks in order; or a list of {name, rack}"
    )
    block: str = Field(default=DEFAULT_BLOCK, description="the SRv6 locator block, a /32")
    links: LinksFile = Field(default_factory=LinksFile, description="rates, delays and MTUs")
    racks: Literal["in-order", "rails"] = Field(
        default="in-order",
        description="how a number of hosts is spread: racks filled in order, or host i at T0 i modulo t0, "
        "as the NICs of servers on rails",
    )
    oversubscription: Annotated[float, Number(0.01, 1000)] | None = Field(
        default=None,
        description="a rack's bandwidth to its hosts over that to the T1s, in place of "
        "links.fabric.rate: 1 does not block, 4 has a quarter",
    )
    classes: Classes = Field(
        default_factory=dict,
        description="traffic classes (data, trimmable, high, control) by DSCP, if they differ "
        "(docs/switch-program.md)",
    )

    @field_validator("block")
    @classmethod
    def _is_block(cls, block: str) -> str:
        try:
            network = IPv6Network(block)
        except ValueError as error:
            raise ValueError(f"must be a /32 such as {DEFAULT_BLOCK}: {error}") from None
        if network.prefixlen != BLOCK_PREFIX_LEN:
            raise ValueError(f"must be a /32 such as {DEFAULT_BLOCK}, not {block}")
        return block

    @field_validator("hosts")
    @classmethod
    def _some_hosts(cls, hosts: int | list[HostFile]) -> int | list[HostFile]:
        if isinstance(hosts, list) and not 1 <= len(hosts) <= MAX_HOSTS:
            raise ValueError(f"must be from 1 to {MAX_HOSTS} hosts, not {len(hosts)}")
        return hosts

    @model_validator(mode="after")
    def _rails_need_a_number(self) -> Self:
        if self.racks == "rails" and not isinstance(self.hosts, int):
            raise wrong("a list of hosts has the rack of each: leave this out", "racks")
        return self

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.oversubscription is not None:
            if "rate" in self.links.fabric.model_fields_set:
                raise wrong("links.fabric has a rate already: give one of the two", "oversubscription")
            if not self.t1:
                raise wrong("without T1s there is nothing to oversubscribe", "oversubscription")
            rate = self._fabric_rate(self.oversubscription)
            if not MIN_RATE_BPS <= rate <= MAX_RATE_BPS:
                raise wrong(
                    f"links to T1s would have {rate:,} bit/s: 1 Mbit/s to 1 Tbit/s", "oversubscription"
                )
        return self

    def _fabric_rate(self, oversubscription: float) -> int:
        """Return the rate of the links from a T0 to T1s, computed from the rack with the most hosts."""
        most = max(Counter(host.rack for host in self._host_specs()).values())
        return round(self.links.host.rate * most / (self.t1 * oversubscription))

    def _host_specs(self) -> tuple[HostSpec, ...]:
        if isinstance(self.hosts, int):
            rails, count = self.racks == "rails", self.hosts
            racks = (i % self.t0 if rails else i * self.t0 // count for i in range(count))
            return tuple(HostSpec(f"h{i}", rack) for i, rack in enumerate(racks))
        return tuple(HostSpec(host.name, host.rack) for host in self.hosts)

    def spec(self) -> FabricSpec:
        """Return the fabric's definition, from which `build` makes the fabric."""
        fabric_links = self.links.fabric.profile()
        if self.oversubscription is not None:
            fabric_links = replace(fabric_links, rate_bps=self._fabric_rate(self.oversubscription))
        return FabricSpec(
            self.name,
            self.planes,
            self.t0,
            self.t1,
            self._host_specs(),
            IPv6Network(self.block),
            self.links.host.profile(),
            fabric_links,
            tuple(entry.exception() for entry in self.links.exceptions),
            switch_map(self.classes),
            self.pods,
            self.t2,
            None if self.links.core is None else self.links.core.profile(),
        )


def topology_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a topology file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TopologyFile.model_json_schema()}
