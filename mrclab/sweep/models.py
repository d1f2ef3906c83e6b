"""The models that a sweep can compute. Each takes parameters and a seed, and returns metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mrclab.experiments.spec.scenario import merge, nest
from mrclab.linux.errors import InputError
from mrclab.scale.fabric import Built, Design, smallest_design
from mrclab.scale.job import study
from mrclab.scale.parts import PARTS, TYPICAL, Parts
from mrclab.scale.shares import Fabric, Shares, all_to_all, ecmp_permutation, max_min, permutation
from mrclab.sweep.spec import Plain
from mrclab.topologies.yaml_lines import read_yaml
from mrclab.topologies.yaml_model import validated

_FABRIC: dict[str, Plain] = {"nics": 4096, "planes": 8, "tiers": 0}
DEFAULTS: dict[str, dict[str, Plain]] = {
    "fabric": _FABRIC,
    "shares": {**_FABRIC, "dead_links": 0, "dead_ports": 0, "traffic": "permutation", "spread": "even"},
    "failures": {**_FABRIC, "days": 90.0, "mrc": True},
}
"""The parameters of each model with their default values. ``tiers`` 0 means: as few tiers as possible.

Each model also takes ``parts.<key>``, which changes the table of parts, such as ``parts.job.restart``.
"""
_TRAFFIC = ("permutation", "all-to-all", "ecmp")


def run_model(model: str, params: Mapping[str, Plain], seed: int) -> dict[str, float]:
    """Return the metrics of a model. Raise InputError if a parameter is unknown or its value is not valid."""
    values = dict(DEFAULTS[model])
    parts = parts_of(params)
    for key, value in params.items():
        if key.startswith("parts."):
            continue
        if key not in values:
            raise InputError(f"the model {model} has no '{key}' (it has {', '.join(values)}, parts.*)")
        if not isinstance(value, type(values[key])) and not (
            isinstance(values[key], float) and type(value) is int
        ):
            raise InputError(f"{key} must be like {values[key]!r}, not {value!r}")
        if isinstance(value, int | float) and value < 0:
            raise InputError(f"{key} must be at least 0, not {value}")
        values[key] = value
    return _RUN[model](values, parts, seed)


def parts_of(params: Mapping[str, Plain]) -> Parts:
    """Return the parts of ``typical.yaml``, with ``parts.*`` replaced. Raise InputError on bad values."""
    document = read_yaml(*PARTS.text(TYPICAL))
    for key, value in params.items():
        if key.startswith("parts."):
            document = merge(document, nest(key.split(".")[1:], value, key))
    return validated(Parts, document)


def _built(values: Mapping[str, Any], parts: Parts) -> Built:
    if values["tiers"]:
        return Design(values["tiers"], values["planes"], parts).built(values["nics"])
    return smallest_design(values["nics"], values["planes"], parts).built(values["nics"])


def _fabric(values: Mapping[str, Any], parts: Parts, seed: int) -> dict[str, float]:
    del seed  # this model has no random part
    built = _built(values, parts)
    found = ("switches", "fabric_links", "host_links", "modules", "longest_path", "paths", "power_w", "cost")
    return {
        "tiers": float(built.design.tiers),
        **{name: float(getattr(built, name)) for name in found},
        "power_w_per_nic": built.power_w / built.nics,
        "cost_per_nic": built.cost / built.nics,
    }


def _shares(values: Mapping[str, Any], parts: Parts, seed: int) -> dict[str, float]:
    if values["traffic"] not in _TRAFFIC:
        raise InputError(f"traffic must be one of {', '.join(_TRAFFIC)}, not '{values['traffic']}'")
    if values["spread"] not in ("even", "adaptive"):
        raise InputError(f"spread must be even or adaptive, not '{values['spread']}'")
    rng, built = np.random.default_rng(seed), _built(values, parts)
    if values["traffic"] == "ecmp":
        return _of(ecmp_permutation(built, rng, values["dead_links"]))
    fabric = Fabric.of(built).with_dead_links(values["dead_links"], rng)
    fabric = fabric.with_dead_ports(values["dead_ports"], rng)
    flows = permutation(fabric, rng) if values["traffic"] == "permutation" else all_to_all(fabric)
    return _of(max_min(fabric, flows, "adaptive" if values["spread"] == "adaptive" else "even"))


def _of(shares: Shares) -> dict[str, float]:
    return {"mean": shares.total, "p1": shares.percentile(1), "least": shares.least}


def _failures(values: Mapping[str, Any], parts: Parts, seed: int) -> dict[str, float]:
    built = _built(values, parts)
    if not values["days"]:
        raise InputError("days must be more than 0")
    found = study("", built, parts, sprays=values["mrc"], runs=1, seed=seed, days=values["days"])
    return {
        "goodput": float(found.goodput[0]),
        "goodput_with_others": float(found.goodput_with_others[0]),
        "restarts": float(found.restarts[0]),
        "restarts_expected": found.restarts_expected,
        "stalled": float(found.stalled[0]),
        "useful": float(found.useful[0]),
        "capacity": float(found.capacity.mean()),
    }


_RUN: dict[str, Callable[[Mapping[str, Any], Parts, int], dict[str, float]]] = {
    "fabric": _fabric,
    "shares": _shares,
    "failures": _failures,
}
