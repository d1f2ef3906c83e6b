"""Queue pair attributes as JSON, which two ends exchange out of band (SPEC section 10, Table 10-1).

Attributes have the key ``transport``, the kind; those of MRC do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mrclab.hosts.rdma.paths import PortAddress
from mrclab.hosts.transports.kinds import kind_in_use

MRC = "mrc"


def attributes_to_dict(attributes: Any) -> dict[str, Any]:
    """Return the attributes in JSON's types, with addresses in hexadecimal."""
    data = asdict(attributes)
    data["ports"] = [
        {"port": p.port, "mac": p.mac.hex(), "address": p.address.hex()} for p in attributes.ports
    ]
    if attributes.kind != MRC:
        data["transport"] = attributes.kind
    return data


def attributes_from_dict(data: Mapping[str, Any]) -> Any:
    """Invert ``attributes_to_dict``. Raise KeyError, TypeError or ValueError for anything else."""
    ports = tuple(
        PortAddress(p["port"], bytes.fromhex(p["mac"]), bytes.fromhex(p["address"])) for p in data["ports"]
    )
    given = {**data, "ports": ports}
    return kind_in_use(given.pop("transport", MRC)).attributes(**given)
