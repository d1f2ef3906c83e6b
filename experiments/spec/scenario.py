"""Reading a scenario from short YAML: variants, overrides, and mistakes in one line.

A scenario may differ by topology (``topologies: {wide: {warmup: 1 s}}``) and by the target it runs on
(``targets: {bmv2: {workload: {rate: 20 Mbit/s}}}``), in whose part ``topologies`` may differ again. The
command line may set any key (``--set workload.rate="50 Mbit/s"``, ``--set faults.0.hold="50 ms"``). Every
mistake is one line that names the file, the line and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mrclab.experiments.spec.model import TARGETS, Scenario
from mrclab.experiments.spec.overlay import merge, nest, parse_overrides, part_of, without
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.experiments.spec.slow_motion import slowed
from mrclab.experiments.spec.workloads import AUTO
from mrclab.p4src.targets import target_name
from mrclab.topologies.yaml_lines import YamlDocument, read_yaml
from mrclab.topologies.yaml_model import validated

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
    """Return the scenario of a shipped name or of a YAML file, with the command line's overrides on top.

    ``settings`` are the KEY=VALUE of ``--set``. Direct arguments (``topology`` to ``program``) win over them,
    they win over the part for the target, that over the part for the topology, and that over the rest of the
    file. ``trials`` are those of the sequential faults, or repetitions if there are none. Raise InputError.
    """
    text, where = SCENARIOS.text(name_or_file)
    overrides = parse_overrides(settings, topology=topology, target=target, seed=seed, program=program)
    if duration is not None:
        overrides.append(nest(("workload", "duration"), duration, "--duration"))
    return parse_scenario(text, where, overrides, trials=trials)


def parse_scenario(
    text: str, where: str, overrides: Sequence[YamlDocument] = (), *, trials: int | None = None
) -> Scenario:
    """Return the scenario of a YAML text; ``overrides`` are laid over it, the last one on top.

    Raise InputError.
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
                if given:  # by who wins over the part
                    whole = whole.with_value(("topology",), topology, variants)
            else:
                others += [merge(merge(base, part), of) for _, of in inner] or [merge(base, part)]
    for override in overrides:
        whole = merge(whole, override)
    if trials is not None:
        whole = _with_trials(whole, trials)
    found = validated(Scenario, whole)
    for other in others:  # a mistake in a part shows even if the part is not used
        validated(Scenario, other)
    if found.slower != 1:
        found = slowed(found.model_copy(update={"slower": 1.0}), found.slower)
    return found


def _has_part(document: YamlDocument, target: str) -> bool:
    """Return whether a scenario has a part for a target."""
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
    """Set the trials of the sequential faults, or the repetitions if there are none."""
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
