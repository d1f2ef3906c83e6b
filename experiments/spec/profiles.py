"""The entries of a scenario's ``profiles``: changes of the NICs' sets of EVs at given times."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mrclab.hosts.mrc.profiles.profile import ProfileError
from mrclab.hosts.mrc.profiles.requests import entry_of
from mrclab.topologies.yaml_model import Time, WholeNumber, YamlModel, wrong


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class ProfileChange(YamlModel):
    """One change of the EV profiles (the sets of EVs) on the NICs of some hosts."""

    do: Literal["deny", "allow", "replace"] = Field(description="deny EVs, allow them again, or replace one")
    at_ns: Annotated[int, Time()] = Field(0, alias="at", description="after the measurement starts")
    hosts: str = Field("*", description="a host, or a pattern with * ? []")
    ports: Annotated[tuple[Annotated[int, WholeNumber(1, 256)], ...], BeforeValidator(_as_tuple)] = Field(
        (), description="deny, allow: all EVs of these ports, from 1: plane p0 is port 1"
    )
    evs: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="deny, allow: EVs by name, such as 0x28000@3; replace: the old one and the new one"
    )

    @model_validator(mode="after")
    def _names_evs(self) -> Self:
        for text in self.evs:
            try:
                entry_of(text)
            except ProfileError as error:
                raise wrong(str(error), "evs") from None
        if self.do == "replace":
            if self.ports or len(self.evs) != 2:
                raise wrong("replace takes the old EV and the new one", "evs")
        elif bool(self.ports) == bool(self.evs):
            raise wrong("give ports, or EVs", "ports")
        return self

    def request(self) -> dict[str, Any]:
        """Return this change as a request to a NIC."""
        if self.do == "replace":
            return {"do": "replace", "old": self.evs[0], "new": self.evs[1], "all": True}
        which = {"ports": list(self.ports)} if self.ports else {"evs": list(self.evs)}
        return {"do": "set", "state": "DENIED" if self.do == "deny" else "GOOD", **which}

    def hosts_of(self, hosts: Iterable[str]) -> list[str]:
        """Return the hosts whose NICs are changed."""
        return [host for host in hosts if fnmatchcase(host, self.hosts)]
