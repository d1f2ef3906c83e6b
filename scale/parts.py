"""The parts of a fabric and the assumptions about them: rates, power, cost, failures, and the job.

A user can change these values in a YAML file that has only the changed keys. ``scale/parts/typical.yaml`` has
all keys, with the source of each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from mrclab.topologies.shipped import Shipped
from mrclab.topologies.yaml_lines import read_yaml
from mrclab.topologies.yaml_model import Number, Rate, Time, YamlModel, validated

PARTS = Shipped("table of parts", "mrclab.scale", "parts")
TYPICAL = "typical"

_YEAR_NS = 365 * 24 * 3600 * 10**9
_Hours = Annotated[float, Number(1e-6, 1e12)]
_Positive = Annotated[float, Number(0, 1e9)]
_Rate = Annotated[int, Rate(10**9, 10**18)]
_Span = Annotated[int, Time(0, _YEAR_NS)]


class SwitchPart(YamlModel):
    """A switch with one chip."""

    capacity_bps: _Rate = Field(default=51_200 * 10**9, alias="capacity")
    power_w: _Positive = 913.0
    cost: _Positive = 30_000.0


class ModulePart(YamlModel):
    """A pluggable optical module, one at each end of a fibre. Its rate may be split into several ports."""

    rate_bps: _Rate = Field(default=800 * 10**9, alias="rate")
    power_w: _Positive = 16.0
    cost: _Positive = 1_000.0


class CopperPart(YamlModel):
    """A copper cable with both its connectors. It has the same rate as an optical module (`ModulePart`)."""

    power_w: _Positive = 0.2
    cost: _Positive = 300.0


class NicPart(YamlModel):
    """A NIC. Its power and cost are the same in every design, so only its rate is needed."""

    rate_bps: _Rate = Field(default=800 * 10**9, alias="rate")


class FailurePart(YamlModel):
    """The mean time between failures of one part, and the mean time of a repair (hours)."""

    mtbf_hours: _Hours
    repair_hours: _Hours


class Failures(YamlModel):
    """The mean time between failures and the mean repair time of one link, NIC or switch."""

    fabric_link_flap: FailurePart = FailurePart(mtbf_hours=2_381.0, repair_hours=0.0167)
    fabric_link: FailurePart = FailurePart(mtbf_hours=1_000_000.0, repair_hours=12.0)
    host_link_flap: FailurePart = FailurePart(mtbf_hours=674_000.0, repair_hours=0.0167)
    host_link: FailurePart = FailurePart(mtbf_hours=6_067_000.0, repair_hours=12.0)
    nic: FailurePart = FailurePart(mtbf_hours=5_000_000.0, repair_hours=12.0)
    switch_reboot: FailurePart = FailurePart(mtbf_hours=50_000.0, repair_hours=0.0333)
    switch: FailurePart = FailurePart(mtbf_hours=400_000.0, repair_hours=12.0)

    def by_kind(self) -> Mapping[str, FailurePart]:
        """Return the kinds of failure by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class Job(YamlModel):
    """A synchronous job, and how each transport reacts to failures. All values are inputs, not results."""

    communication: Annotated[float, Number(0, 1)] = 0.2
    """Share of a step in which the job waits for the network, without any failure."""
    checkpoint_ns: _Span = Field(default=1_800 * 10**9, alias="checkpoint_every")
    restart_ns: _Span = Field(default=600 * 10**9, alias="restart")
    mrc_stall_ns: _Span = Field(default=100_000, alias="mrc_stall")
    """Stall of a job on MRC when links or switches between T0s fail."""
    mrc_port_stall_ns: _Span = Field(default=3 * 10**9, alias="mrc_port_stall")
    """Stall of a job on MRC when a NIC loses a port, until its peers use other planes."""
    reroute_ns: _Span = Field(default=5 * 10**9, alias="reroute")
    """Stall of a job on a routed fabric until the routing has detected a fault and found another route."""
    carrier_ns: _Span = Field(default=50 * 10**6, alias="carrier")
    """Stall of a job if the switch sees the loss of carrier and removes the link from its ECMP group."""
    timeout_ns: _Span = Field(default=30 * 10**9, alias="timeout")
    """If the traffic of a job stops for more than this time, the job ends and starts from its checkpoint."""
    other_mtbf_hours: _Hours = 55_296.0
    """Mean hours between interruptions of one GPU. The network does not cause these interruptions."""


class Parts(YamlModel):
    """All parts of a fabric."""

    what = "the table of parts"

    name: str = "typical"
    switch: SwitchPart = SwitchPart()
    module: ModulePart = ModulePart()
    copper: CopperPart = CopperPart()
    nic: NicPart = NicPart()
    host_links: Literal["optical", "copper"] = "optical"
    failures: Failures = Failures()
    job: Job = Job()


def parse_parts(text: str, where: str) -> Parts:
    """Return the parts of a YAML text. Raise InputError: one line with file, line and key."""
    return validated(Parts, read_yaml(text, where))


def load_parts(name_or_file: str = TYPICAL) -> Parts:
    """Return the shipped parts of this name, or the parts in a YAML file. Raise InputError if not valid."""
    return parse_parts(*PARTS.text(name_or_file))
