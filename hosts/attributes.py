"""Queue pair attributes as JSON: what two ends exchange out of band (SPEC section 10, Table 10-1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hosts.mrc import PortAddress, QpAttributes


def attributes_to_dict(attributes: QpAttributes) -> dict[str, Any]:
    """The attributes in JSON's types; addresses in hexadecimal."""
    data = asdict(attributes)
    data["ports"] = [
        {"port": p.port, "mac": p.mac.hex(), "address": p.address.hex()} for p in attributes.ports
    ]
    return data


def attributes_from_dict(data: Mapping[str, Any]) -> QpAttributes:
    """The inverse of ``attributes_to_dict``. Raises KeyError, TypeError or ValueError on something else."""
    ports = tuple(
        PortAddress(p["port"], bytes.fromhex(p["mac"]), bytes.fromhex(p["address"])) for p in data["ports"]
    )
    return QpAttributes(**{**data, "ports": ports})
