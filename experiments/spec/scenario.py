"""Read a scenario from YAML, with its variants for topologies and targets and the command line's settings.

A scenario can have other values for a topology (``topologies: {wide: {warmup: 1 s}}``) and for a target
(``targets: {bmv2: {workload: {rate: 20 Mbit/s}}}``). The part for a target can contain ``topologies``, too.
The command line can set any key (``--set workload.rate="50 Mbit/s"``, ``--set faults.0.hold="50 ms"``). An
error message is one line that names the file, the line and the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrclab.experiments.spec.model import TARGETS, Scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.experiments.spec.slow_motion import slowed
from mrclab.experiments.spec.workloads import AUTO
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import target_name
from mrclab.topologies.yaml_lines import KeyPath, Place, YamlDocument, read_yaml
from mrclab.topologies.yaml_model import validated


def parse_setting(setting: str) -> YamlDocument:
    """Return a setting such as ``workload.rate=50 Mbit/s`` as a document. Raise InputError if it is wrong."""
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
    """Return a document with ``value`` at the nested ``keys``. Error messages name ``where`` as source."""
    return YamlDocument({}, where, {(): Place(where)}).with_value(tuple(keys), value, where)


def parse_overrides(settings: Sequence[str], **options: str | int | None) -> list[YamlDocument]:
    """Return the settings of ``--set`` and then the named options as documents, in the order of merging."""
    overrides = [parse_setting(setting) for setting in settings]
    return overrides + [
        nest((key,), value, f"--{key}") for key, value in options.items() if value is not None
    ]


def part_of(document: YamlDocument, path: KeyPath) -> YamlDocument:
    """Return the mapping at ``path`` as a separate document. Raise InputError if the value is no mapping."""
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
    """Return ``base``, changed by the values of ``over``. Nested mappings are merged.

    If ``base`` has a list and ``over`` a mapping, the mapping's keys are indices of the list
    (``faults: {0: {at: 1 s}}``). Raise InputError if the list has no such index.
    """
    places = dict(base.places)
    data = _merged(base.data, over.data, (), (), over, places)
    return YamlDocument(data, base.where, places)


def _merged(
    old: Any, new: Any, path: KeyPath, over_path: KeyPath, over: YamlDocument, places: dict[KeyPath, Place]
) -> Any:
    """Return the value ``old`` at ``path``, merged with ``new``. Update the values' lines in ``places``."""
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


_VARIANTS = {"topologies": "topology", "targets": "target"}


def load_scenario(
    name_or_file: str,
    *,
    topology: str | None = None,
    target: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
    duration: str | None = None,
    program: str | None = None,
    settings: Sequence[str] = (),
) -> Scenario:
    """Return the scenario of a shipped name or of a YAML file, changed by the command line's settings.

    If a key is set in several places, the first place in this list counts: the arguments ``topology`` to
    ``program``; ``settings``, the KEY=VALUE of ``--set``; the file's part for the target; the file's part for
    the topology; the rest of the file. ``trials`` sets the number of sequential faults. If there are no
    sequential faults, ``trials`` sets the number of repetitions.
    """
    text, where = SCENARIOS.text(name_or_file)
    overrides = parse_overrides(settings, topology=topology, target=target, seed=seed, program=program)
    if duration is not None:
        overrides.append(nest(("workload", "duration"), duration, "--duration"))
    return parse_scenario(text, where, overrides, trials=trials)


def parse_scenario(
    text: str, where: str, overrides: Sequence[YamlDocument] = (), *, trials: int | None = None
) -> Scenario:
    """Return the scenario of a YAML text, merged with ``overrides`` in their order.

    Raise InputError if the scenario is wrong.
    """
    document = read_yaml(text, where)
    base = without(document, tuple(_VARIANTS))
    topology, target = base.data.get("topology"), base.data.get("target", AUTO)
    for override in overrides:
        topology = override.data.get("topology", topology)
        target = override.data.get("target", target)
    given = any("topology" in override.data for override in overrides)
    own = part_of(document, ("targets", str(target))).data if _has_part(document, str(target)) else {}
    if not given and "topology" in own:
        topology = own["topology"]
    chosen: dict[str, tuple[str, ...]] = {"topologies": (), "targets": ()}
    if isinstance(topology, str):
        chosen["topologies"] = (topology, Path(topology).stem)
    if target in TARGETS and "targets" in document.data:
        chosen["targets"] = (target_name(str(target)),)
    whole, others = base, []
    for variants, key in _VARIANTS.items():
        for name, whole_part in _parts(document, variants):
            if key in whole_part.data:
                raise whole_part.error(f"{variants} cannot choose another {key}", (key,))
            inner = _parts(whole_part, "topologies") if variants == "targets" else []
            part = without(whole_part, ("topologies",)) if variants == "targets" else whole_part
            if name in chosen[variants]:
                for piece in (part, *(of for place, of in inner if place in chosen["topologies"])):
                    whole = merge(whole, piece)
                unused = [of for place, of in inner if place not in chosen["topologies"]]
                others += [merge(merge(base, part), of) for of in unused]
                if given:  # the command line's topology must not be replaced by the part for a target
                    whole = whole.with_value(("topology",), topology, variants)
            else:
                others += [merge(merge(base, part), of) for _, of in inner] or [merge(base, part)]
    for override in overrides:
        whole = merge(whole, override)
    if trials is not None:
        whole = _with_trials(whole, trials)
    found = validated(Scenario, whole)
    for other in others:  # report mistakes also in parts for other topologies and targets
        validated(Scenario, other)
    if found.slower != 1:
        found = slowed(found.model_copy(update={"slower": 1.0}), found.slower)
    return found


def _has_part(document: YamlDocument, target: str) -> bool:
    parts = document.data.get("targets")
    return isinstance(parts, dict) and target in parts


def _parts(document: YamlDocument, variants: str) -> list[tuple[str, YamlDocument]]:
    if variants not in document.data:
        return []
    names = part_of(document, (variants,)).data
    for name in names:
        if variants == "targets" and name not in TARGETS[1:]:
            raise document.error(
                f"targets has no key '{name}' (it has {', '.join(TARGETS[1:])})", (variants, name)
            )
    return [(name, part_of(document, (variants, name))) for name in names]


def _with_trials(document: YamlDocument, trials: int) -> YamlDocument:
    """Set the number of sequential faults, or of repetitions if there are no sequential faults."""
    entries = document.data.get("faults")
    sequences = [
        number
        for number, entry in enumerate(entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and "trials" in entry
    ]
    if not sequences:
        return document.with_value(("repetitions",), trials, "--trials")
    for number in sequences:
        document = document.with_value(("faults", number, "trials"), trials, "--trials")
    return document
