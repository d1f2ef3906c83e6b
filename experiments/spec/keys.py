"""What keys a part of a scenario has, once: read from YAML and published as JSON schema from one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from linux.errors import InputError
from topologies.yamlfile import Value, YamlMap

Kind = Literal["int", "number", "bool", "text", "choice", "rate", "time", "size", "sizes", "texts"]

RATE_PATTERN = r"^\s*\d+(\.\d+)?\s*[kKmMgG]?(bit|bps|b)(/s|ps)?\s*$"
TIME_PATTERN = r"^\s*\d+(\.\d+)?\s*(ns|us|ms|s|min|h)\s*$"
SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*(B|KiB|MiB|GiB|kB|MB|GB)\s*$"
UNITS = {"rate": "_bps", "time": "_ns", "size": "_bytes", "sizes": "_bytes"}
MAX_TIME_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Key:
    """One key: ``default`` is in the units that ``read`` returns, None for a key that must be given.

    ``low`` and ``high`` bound numbers, and rates, times and sizes in bits per second, ns and bytes.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    low: float = 0
    high: float = 2**63 - 1
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name under which it goes on: with its unit."""
        unit = UNITS.get(self.kind, "")
        return self.name if self.name.endswith(unit) else self.name + unit

    def read(self, value: Value, what: str) -> Any:
        """The value, checked. Raises InputError that names it ``what``."""
        if self.kind == "bool":
            return value.as_bool(what)
        if self.kind == "text":
            return value.as_str(what)
        if self.kind == "texts":
            return [item.as_str(what) for item in value.as_list(what)]
        if self.kind == "sizes":
            items = value.as_list(what) if isinstance(value.data, list) else [value]
            if not items:
                raise value.error(f"{what} is empty")
            return [self._bounded(item, item.as_size_bytes(what), what) for item in items]
        if self.kind == "int":
            return value.as_int(what, low=int(self.low), high=int(self.high))
        if self.kind == "number":
            return value.as_number(what, low=self.low, high=self.high)
        if self.kind == "choice":
            word = value.as_str(what)
            if word not in self.choices:
                raise value.error(f"{what} must be {' or '.join(self.choices)}, not '{word}'")
            return word
        if self.kind == "rate":
            return self._bounded(value, value.as_rate_bps(what), what)
        if self.kind == "time":
            return self._bounded(value, value.as_time_ns(what), what, min(self.high, MAX_TIME_NS))
        return self._bounded(value, value.as_size_bytes(what), what)

    def _bounded(self, value: Value, number: int, what: str, high: float | None = None) -> int:
        high = self.high if high is None else high
        if not self.low <= number <= high:
            raise value.error(
                f"{what} must be from {self._say(self.low)} to {self._say(high)}, not '{value.data}'"
            )
        return number

    def _say(self, number: float) -> str:
        if self.kind == "time":
            return f"{number / 1e6:g} ms" if number < 1e9 else f"{number / 1e9:g} s"
        if self.kind == "rate":
            return f"{number / 1e6:g} Mbit/s"
        return f"{number:g} bytes"

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the key's value."""
        out: dict[str, Any] = {"description": self.meaning}
        size = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}
        if self.kind in ("int", "number"):
            out |= {"type": "integer" if self.kind == "int" else "number", "minimum": self.low}
            if self.high < 2**63 - 1:
                out["maximum"] = self.high
        elif self.kind == "choice":
            out["enum"] = list(self.choices)
        elif self.kind == "rate":
            out |= {"type": "string", "pattern": RATE_PATTERN}
        elif self.kind == "time":
            out["anyOf"] = [{"const": 0}, {"type": "string", "pattern": TIME_PATTERN}]
        elif self.kind == "size":
            out |= size
        elif self.kind == "sizes":
            out["anyOf"] = [{"type": "array", "items": size, "minItems": 1}, *size["anyOf"]]
        elif self.kind == "texts":
            out |= {"type": "array", "items": {"type": "string"}}
        else:
            out["type"] = {"bool": "boolean", "text": "string"}[self.kind]
        return out


def read_keys(
    part: YamlMap, keys: Sequence[Key], what: str, also: Sequence[str] = (), prefix: str = ""
) -> dict[str, Any]:
    """All keys of a part, defaults filled in, by field name. ``also`` are keys that others read.

    Raises InputError on a key that it has not got, one that is missing, and a value that is out of bounds.
    """
    part.only([*also, *(key.name for key in keys)], what)
    found: dict[str, Any] = {}
    for key in keys:
        if key.name in part:
            found[key.field] = key.read(part[key.name], prefix + key.name)
        elif key.default is None:
            raise InputError(f"{what} needs '{key.name}'", where=part.where, line=part.line)
        else:
            found[key.field] = key.default
    return found


def keys_schema(keys: Sequence[Key], also: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON schema of a mapping with these keys, and with ``also``'s."""
    properties = {**(also or {}), **{key.name: key.schema() for key in keys}}
    out: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [key.name for key in keys if key.default is None]
    if required:
        out["required"] = required
    return out
