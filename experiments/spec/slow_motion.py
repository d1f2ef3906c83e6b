"""Slow motion: an experiment with all rates divided by a number, and all times multiplied by this number.

If a machine is too slow for the rates of a scenario, slow motion gives an equivalent, slower run. The number
of packets, the queue lengths and the link loads stay the same. Only the hosts' processing is not slowed down.
Criteria compare values with rates and round trips of the same result, so the criteria need no change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import BaseModel

from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.transports import TransportEntry
from mrclab.hosts.transports import Transport, endpoint_options, merged
from mrclab.topologies import Fabric
from mrclab.topologies.shipped import TOPOLOGIES
from mrclab.topologies.units import rate_bps
from mrclab.topologies.yaml_lines import read_yaml

Model = TypeVar("Model", bound=BaseModel)

EXCEPTIONS = "except"
DOUBLING = ("ack_timeout_exponent", "timeout_exponent")
"""Options of endpoints that are the exponent of a time: if such an option grows by 1, the time doubles."""
INNER = ("dcqcn",)
"""Options of endpoints that are groups of options, some of which are times and rates."""
BY_TOPOLOGY = ("line_rate_bps",)


def slowed(scenario: Scenario, times: float) -> Scenario:
    """Return the scenario, slower by the factor ``times``. Only detection times of routing protocols stay."""
    if times == 1:
        return scenario
    changes: dict[str, Any] = _scaled(scenario, times) | {
        "slower": scenario.slower * times,
        "topology": _topology(scenario.topology, scenario.fabric(), times),
        "workload": _copy(scenario.workload, times),
        "measure": _copy(scenario.measure, times),
        "faults": tuple(_copy(fault, times) for fault in scenario.faults),
        "entries": {name: _entry(scenario, name, times) for name in scenario.entries},
    }
    found = scenario.model_copy(update=changes)
    found.__dict__.pop("transports", None)  # remove the cached transports of the old entries
    return found


def _scaled(model: BaseModel, times: float) -> dict[str, Any]:
    """Return a model's times (ns), multiplied by ``times``, and its rates (bit/s), divided by ``times``."""
    values = {name: getattr(model, name) for name in type(model).model_fields}
    return _numbers(values, times)


def _numbers(values: Mapping[str, Any], times: float) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        if isinstance(value, int | float) and name.endswith("_ns"):
            found[name] = round(value * times)
        elif isinstance(value, int | float) and name.endswith("_bps"):
            found[name] = round(value / times)
    return found


def _copy(model: Model, times: float) -> Model:
    return model.model_copy(update=_scaled(model, times))


def _entry(scenario: Scenario, name: str, times: float) -> TransportEntry:
    """Return a transport's entry with all endpoint times and rates slowed down, also the default values."""
    entry = scenario.entries[name]
    transport = entry.transport(name)
    usual = _defaults(scenario, transport)
    options = merged(usual, {k: v for k, v in transport.options.items() if k not in usual or v is not True})
    doubled = {key: options[key] + round(math.log2(times)) for key in DOUBLING if key in options}
    parts = {key: options[key] for key in INNER if isinstance(options.get(key), Mapping)}
    inner = {key: {**part, **_numbers(part, times)} for key, part in parts.items()}
    scaled = {**transport.options, **_numbers(options, times), **doubled, **inner}
    return entry.model_copy(update={"options": scaled})


def _defaults(scenario: Scenario, transport: Transport) -> dict[str, Any]:
    """Return the default times and rates of endpoints; {} if a propagation delay sets these values."""
    if transport.core.config is None or scenario.propagation_ns:
        return {}
    fabric = scenario.fabric()
    options = endpoint_options(transport.kind, transport.channel_options)
    config = transport.core.config(fabric, fabric.hosts[0].name, options)
    found = _set_ones(config)
    for key in INNER:
        if (part := getattr(config, key, None)) is not None:
            found[key] = {k: v for k, v in _set_ones(part).items() if k not in BY_TOPOLOGY}
    return found


def _set_ones(config: Any) -> dict[str, Any]:
    """Return the times, rates and exponents of a configuration. Skip 0 and None, which stand for defaults."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and v}
    return {k: v for k, v in numbers.items() if k in DOUBLING or k.endswith(("_ns", "_bps"))}


def _topology(asked: str | dict[str, Any], fabric: Fabric, times: float) -> dict[str, Any]:
    """Return a complete topology in which the rate of every link is divided by ``times``."""
    document = read_yaml(*TOPOLOGIES.text(asked)).data if isinstance(asked, str) else asked
    links = dict(document.get("links") or {})
    for link in fabric.links:
        if link.kind not in links or "rate" not in links[link.kind]:
            links[link.kind] = {**links.get(link.kind, {}), "rate": _text(link.profile.rate_bps)}
    slower: dict[str, Any] = {
        kind: _slower(entry, times) for kind, entry in links.items() if kind != EXCEPTIONS
    }
    if EXCEPTIONS in links:
        slower[EXCEPTIONS] = [_slower(entry, times) for entry in links[EXCEPTIONS]]
    return {**document, "links": slower}


def _slower(entry: Mapping[str, Any], times: float) -> dict[str, Any]:
    """Return the entry of a link, or of a kind of links, with its rate divided by ``times``."""
    rate = {"rate": _text(rate_bps(entry["rate"]) / times)} if "rate" in entry else {}
    return {**entry, **rate}


def _text(bps: float) -> str:
    return f"{bps / 1e6:.6f} Mbit/s"
