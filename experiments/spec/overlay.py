"""Lay one YAML mapping over another: the command line's overrides over a scenario, a part over the whole."""

from __future__ import annotations

from collections.abc import Sequence

from linux.errors import InputError
from topologies.yamlfile import Value, YamlMap, parse_yaml


def parse_setting(setting: str) -> YamlMap:
    """``workload.rate=50 Mbit/s`` as a mapping to lay over a scenario. Raises InputError."""
    key, equals, text = setting.partition("=")
    where = f"--set {key.strip()}"
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise InputError(
            f"'{setting}' is not KEY=VALUE, such as trials=5 or workload.rate='50 Mbit/s'", where="--set"
        )
    try:
        value = parse_yaml(f"value: {text}", where)["value"]
    except InputError:
        raise InputError(f"'{text}' is not a YAML value", where=where) from None
    return nest(keys, _place(value, where))


def nest(keys: Sequence[str], value: Value) -> YamlMap:
    """A mapping that has ``value`` under the keys, one in the other."""
    for key in reversed(keys[1:]):
        value = Value(YamlMap({key: value}, value.where, value.line), value.where, value.line)
    return YamlMap({keys[0]: value}, value.where, value.line)


def _place(value: Value, where: str) -> Value:
    """The same value without a line, which means nothing on a command line."""
    data = value.data
    if isinstance(data, YamlMap):
        data = YamlMap({key: _place(item, where) for key, item in data.items()}, where, None)
    elif isinstance(data, list):
        data = [_place(item, where) for item in data]
    return Value(data, where, None)


def merge(base: YamlMap, over: YamlMap) -> YamlMap:
    """``base`` with ``over`` laid on top, mapping by mapping."""
    merged = dict(base.items())
    for key, value in over.items():
        old = merged.get(key)
        if old is not None and isinstance(old.data, YamlMap) and isinstance(value.data, YamlMap):
            value = Value(merge(old.data, value.data), value.where, value.line)
        merged[key] = value
    return YamlMap(merged, base.where, base.line)


def parse_overrides(settings: Sequence[str], **options: str | int | None) -> list[YamlMap]:
    """The KEY=VALUE of ``--set`` and then the options given by name, in the order in which they apply."""
    overrides = [parse_setting(setting) for setting in settings]
    for key, override in options.items():
        if override is not None:
            overrides.append(nest((key,), Value(override, f"--{key}", None)))
    return overrides
