"""YAML that remembers its lines, so that every complaint can name the one to mend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from linux.errors import InputError

T = TypeVar("T")

_RATE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmg]?)(?:bit|bps|b)(?:/s|ps)?\s*$", re.IGNORECASE)
_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)\s*$", re.IGNORECASE)
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|MB|GB)\s*$")
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_TIME_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it stands: ``data`` is a scalar, a list of Value or a YamlMap.

    ``line`` is None for what comes from no file.
    """

    data: Any
    where: str
    line: int | None

    def error(self, message: str) -> InputError:
        """An error that points at this value."""
        return InputError(message, where=self.where, line=self.line)

    def as_map(self, what: str) -> YamlMap:
        """This value as a mapping, or an error that calls it ``what``."""
        if not isinstance(self.data, YamlMap):
            raise self.error(f"{what} must be a mapping (key: value)")
        return self.data

    def as_list(self, what: str) -> Sequence[Value]:
        """This value as a list, or an error that calls it ``what``."""
        if not isinstance(self.data, list):
            raise self.error(f"{what} must be a list")
        return self.data

    def as_int(self, what: str, *, low: int, high: int) -> int:
        """This value as a whole number within [low, high]."""
        if isinstance(self.data, bool) or not isinstance(self.data, int):
            raise self.error(f"{what} must be a whole number, not {self.data!r}")
        if not low <= self.data <= high:
            raise self.error(f"{what} must be from {low} to {high}, not {self.data}")
        return self.data

    def as_number(self, what: str, *, low: float, high: float) -> float:
        """This value as a number within [low, high]."""
        if isinstance(self.data, bool) or not isinstance(self.data, (int, float)):
            raise self.error(f"{what} must be a number, not {self.data!r}")
        if not low <= self.data <= high:
            raise self.error(f"{what} must be from {low} to {high}, not {self.data}")
        return float(self.data)

    def as_bool(self, what: str) -> bool:
        """This value as true or false."""
        if not isinstance(self.data, bool):
            raise self.error(f"{what} must be true or false, not {self.data!r}")
        return self.data

    def as_str(self, what: str) -> str:
        """This value as text."""
        if not isinstance(self.data, str):
            raise self.error(f"{what} must be text, not {self.data!r}")
        return self.data

    def as_rate_bps(self, what: str) -> int:
        """This value as bits per second, written such as ``200 Mbit/s``."""
        match = _RATE.match(self.data) if isinstance(self.data, str) else None
        if match is None:
            raise self.error(f"{what} must be a rate such as '200 Mbit/s', not {self.data!r}")
        return round(float(match[1]) * _SCALE[match[2].lower()])

    def as_time_ns(self, what: str) -> int:
        """This value as nanoseconds, written such as ``150 us``; a bare 0 is allowed."""
        if self.data == 0 and not isinstance(self.data, bool):
            return 0
        match = _TIME.match(self.data) if isinstance(self.data, str) else None
        if match is None:
            raise self.error(f"{what} must be a time such as '150 us', not {self.data!r}")
        return round(float(match[1]) * _TIME_NS[match[2].lower()])

    def as_size_bytes(self, what: str) -> int:
        """This value as bytes, written such as ``64 KiB`` (1024 each), ``2 MB`` (1000 each), or bare."""
        if isinstance(self.data, int) and not isinstance(self.data, bool):
            return self.data
        match = _SIZE.match(self.data) if isinstance(self.data, str) else None
        if match is None:
            raise self.error(f"{what} must be a size such as '64 KiB' or 65536, not {self.data!r}")
        return round(float(match[1]) * _SIZE_BYTES[match[2]])

    def plain(self) -> Any:
        """The value without its places, as ``yaml.safe_load`` would have given it."""
        if isinstance(self.data, YamlMap):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data


class YamlMap(Mapping[str, Value]):
    """A mapping of the document, in its order."""

    def __init__(self, entries: Mapping[str, Value], where: str, line: int | None) -> None:
        self._entries = dict(entries)
        self.where = where
        self.line = line

    def __getitem__(self, key: str) -> Value:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def error(self, message: str) -> InputError:
        """An error that points at the start of this mapping."""
        return InputError(message, where=self.where, line=self.line)

    def only(self, allowed: Sequence[str], what: str) -> None:
        """Refuses any key that is not allowed, naming those that are."""
        for key, value in self.items():
            if key not in allowed:
                raise value.error(f"{what} has no key '{key}' (it has {', '.join(allowed)})")

    def require(self, key: str, what: str) -> Value:
        """The value under ``key``, or an error that says it is missing."""
        if key not in self:
            raise self.error(f"{what} needs '{key}'")
        return self[key]


def parse_yaml(text: str, where: str) -> YamlMap:
    """Parses a document whose top level is a mapping.

    Raise InputError on anything that is not YAML, is empty, or repeats a key.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"not YAML: {error.problem}", where=where, line=line) from None
    except yaml.YAMLError as error:  # control characters and the like carry no mark
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", where=where) from None
    if root is None:
        raise InputError("the file is empty", where=where)
    return _value(root, where, frozenset()).as_map("the file")


def _value(node: yaml.Node, where: str, above: frozenset[int]) -> Value:
    line = node.start_mark.line + 1
    if id(node) in above:
        raise InputError("an alias refers to what contains it", where=where, line=line)
    above |= {id(node)}
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError("a key must be a word", where=where, line=key_node.start_mark.line + 1)
            key = str(key_node.value)
            if key in entries:
                raise InputError(f"'{key}' is given twice", where=where, line=key_node.start_mark.line + 1)
            value = _value(value_node, where, above)
            entries[key] = Value(value.data, where, key_node.start_mark.line + 1)
        return Value(YamlMap(entries, where, line), where, line)
    if isinstance(node, yaml.SequenceNode):
        return Value([_value(item, where, above) for item in node.value], where, line)
    try:
        data = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"not a value: {str(error).splitlines()[0]}", where=where, line=line) from None
    return Value(data, where, line)
