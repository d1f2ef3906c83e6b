"""Lay one YAML mapping over another: the command line's overrides over a scenario, a part over the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.topologies.yaml_lines import KeyPath, Place, YamlDocument, read_yaml


def parse_setting(setting: str) -> YamlDocument:
    """Return ``workload.rate=50 Mbit/s`` as a document to lay over a scenario. Raise InputError."""
    key, equals, text = setting.partition("=")
    where = f"--set {key.strip()}"
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise InputError(
            f"'{setting}' is not KEY=VALUE, such as warmup='1 s' or faults.0.hold='50 ms'", where="--set"
        )
    try:
        value = read_yaml(f"value: {text}", where).data["value"]
    except InputError:
        raise InputError(f"'{text}' is not a YAML value", where=where) from None
    return nest(keys, value, where)


def nest(keys: Sequence[str], value: Any, where: str) -> YamlDocument:
    """Return a document that has ``value`` under the keys, one inside the other; ``where`` is its source."""
    return YamlDocument({}, where, {(): Place(where)}).with_value(tuple(keys), value, where)


def parse_overrides(settings: Sequence[str], **options: str | int | None) -> list[YamlDocument]:
    """Return the KEY=VALUE of ``--set``, then the options given by name: in the order in which they apply."""
    overrides = [parse_setting(setting) for setting in settings]
    return overrides + [
        nest((key,), value, f"--{key}") for key, value in options.items() if value is not None
    ]


def part_of(document: YamlDocument, path: KeyPath) -> YamlDocument:
    """Return the mapping at ``path`` as a separate document. Raise InputError if it is none."""
    data: Any = document.data
    for key in path:
        data = data[key]
    if not isinstance(data, dict):
        raise document.error("must be a mapping (key: value)", path)
    cut = len(path)
    places = {known[cut:]: place for known, place in document.places.items() if known[:cut] == path}
    return YamlDocument(data, document.where, places)


def without(document: YamlDocument, keys: Sequence[str]) -> YamlDocument:
    """Return the document without some of its keys."""
    data = {key: value for key, value in document.data.items() if key not in keys}
    places = {path: place for path, place in document.places.items() if path[:1] not in [(k,) for k in keys]}
    return YamlDocument(data, document.where, places)


def merge(base: YamlDocument, over: YamlDocument) -> YamlDocument:
    """Return ``base`` with ``over`` laid on top, mapping by mapping.

    A mapping over a list changes the items whose numbers are its keys (``faults: {0: {at: 1 s}}``). Raise
    InputError on a number that the list does not have.
    """
    places = dict(base.places)
    data = _merged(base.data, over.data, (), (), over, places)
    return YamlDocument(data, base.where, places)


def _merged(
    old: Any, new: Any, path: KeyPath, over_path: KeyPath, over: YamlDocument, places: dict[KeyPath, Place]
) -> Any:
    """Return ``new`` laid over ``old``, which is at ``path``; ``places`` follow."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        merged = dict(old)
        for key, value in new.items():
            merged[key] = _merged(old.get(key), value, (*path, key), (*over_path, key), over, places)
        return merged
    if isinstance(old, list) and isinstance(new, Mapping) and all(key.isdecimal() for key in new):
        items = list(old)
        for key, value in new.items():
            number = int(key)
            if number >= len(items):
                raise over.error(f"there is no item {number} (there are {len(items)}, from 0)", over_path)
            items[number] = _merged(items[number], value, (*path, number), (*over_path, key), over, places)
        return items
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    for known, place in over.places.items():
        if known[: len(over_path)] == over_path:
            places[(*path, *known[len(over_path) :])] = place
    return new
