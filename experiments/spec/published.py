"""The JSON schema of a scenario, and the tables of a scenario's keys in docs/scenarios.md.

``mrclab schema scenario`` prints the schema. ``python -m mrclab.experiments.spec.published`` writes the
tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from mrclab.experiments.spec.faults import FORMS
from mrclab.experiments.spec.model import Measure, Scenario, Virtual
from mrclab.experiments.spec.profiles import ProfileChange
from mrclab.experiments.spec.program_workload import OneProgram, ProgramMetric
from mrclab.experiments.spec.transports import TransportEntry
from mrclab.experiments.spec.workloads import KINDS
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies.yaml_model import YamlModel

TABLES: dict[str, type[YamlModel]] = {
    "scenario": Scenario,
    "transport": TransportEntry,
    "profiles": ProfileChange,
    "measure": Measure,
    "virtual": Virtual,
    "program": OneProgram,
    "program metric": ProgramMetric,
    **{f"fault {form}": model for form, model in FORMS.items()},
    **{f"workload {kind}": model for kind, model in KINDS.items()},
}
"""The model of each table, by the table's name in docs/scenarios.md."""

_MARK = re.compile(r"(<!-- keys of (?P<name>[a-z -]+) -->\n).*?(<!-- end of keys -->)", re.DOTALL)


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a scenario file."""
    schema = Scenario.model_json_schema(by_alias=True, mode="validation")
    entry = {"$ref": "#/$defs/TransportEntry"}
    transports = schema["properties"]["transports"]
    transports.pop("additionalProperties", None)
    transports.pop("minProperties", None)
    transports.pop("type", None)
    transports["anyOf"] = [
        {"type": "array", "items": {"enum": list(TRANSPORTS)}, "minItems": 1},
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "null"}, {"const": False}, entry]},
            "minProperties": 1,
        },
    ]
    part = {"type": "object", "additionalProperties": {"type": "object"}}
    schema["properties"]["topologies"] = {**part, "description": "what differs on a topology, by its name"}
    schema["properties"]["targets"] = {**part, "description": "what differs on a target: ebpf, bmv2 or sim"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "mrclab.scenario/2",
        **schema,
        "title": "A scenario of mrclab",
    }


def key_table(model: type[YamlModel]) -> str:
    """Return a Markdown table of a model's keys: key, default value, meaning."""
    rows = ["| key | if not given | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *_rows(model)]) + "\n"


def _rows(model: type[YamlModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key == "kind" and field.description is None:
            continue
        yield f"| `{key}` | {_default(key, name, field)} | {_meaning(field)} |"


def _default(key: str, name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    if field.default_factory is not None:
        return "`[mrc]`" if key == "transports" else ""
    value = field.default
    if value is None or value in ("", ()):
        return ""
    if name.endswith("_ns") and value:
        return f"`{_time_text(value)}`"
    if name.endswith("_bps"):
        return f"`{value / 1e6:g} Mbit/s`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _time_text(value_ns: int) -> str:
    for unit_ns, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if value_ns >= unit_ns:
            return f"{value_ns / unit_ns:g} {unit}"
    return f"{value_ns} ns"


def _meaning(field: FieldInfo) -> str:
    for item in (field, *field.metadata):
        if isinstance(text := getattr(item, "description", None), str):
            return text
    return ""


def with_tables(page: str) -> str:
    """Return a Markdown page with new tables between its marks. Raise KeyError if a mark is unknown."""
    return _MARK.sub(lambda m: f"{m[1]}{key_table(TABLES[m['name']])}{m[3]}", page)


def page_path() -> Path:
    """Return the path of docs/scenarios.md in a checkout."""
    return Path(__file__).resolve().parents[2] / "docs" / "scenarios.md"


def main() -> None:
    """Write the tables into docs/scenarios.md."""
    page_path().write_text(
        with_tables(page_path().read_text(encoding="utf-8")), encoding="utf-8", newline="\n"
    )


if __name__ == "__main__":
    main()
