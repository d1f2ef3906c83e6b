"""``mrclab schema``: the JSON schema of a scenario, a topology or a result, for editors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from mrclab.experiments.result.model import result_schema
from mrclab.experiments.spec.published import scenario_schema
from mrclab.topologies.file import topology_schema

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "scenario": scenario_schema,
    "topology": topology_schema,
    "result": result_schema,
}


def schema(args: argparse.Namespace) -> int:
    """Print the schema of one kind of file."""
    print(json.dumps(SCHEMAS[args.of](), indent=2))
    return 0
