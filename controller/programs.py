"""A user's switch programs: compile them if they are P4, and check that the controller can use them.

A program needs these parts of the shipped P4Info: the tables, match fields, actions and parameters that the
controller writes, the action profile of routes, and the counters that `mrclab status` reads. The rest may
differ.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from mrclab.controller.pipeline import Pipeline, shipped_pipeline
from mrclab.linux.errors import InputError, MachineError
from mrclab.p4src.compile import HERE, run_p4c
from mrclab.p4src.contract import TABLE_ACTIONS, WAYS_PROFILE

P4INFO_SUFFIXES = (".p4info.txtpb", ".p4info.txt")
MOST_NAMED = 8
"""An error message names at most this number of missing parts, and gives only the number of the others."""
MEND = "install p4lang's p4c, or give what it made: FILE.json with FILE.p4info.txtpb beside it"


def load_program(program: Path, into: Path) -> Pipeline:
    """Return a program in the form that targets load. The compiler writes to the directory ``into``.

    ``program`` is P4 or BMv2 JSON. p4c-bm2-ss compiles P4, with the shipped sources on its include path. BMv2
    JSON needs its P4Info in the same directory. Raise InputError if the program cannot be read or compiled,
    or lacks a part that the controller uses. Raise MachineError if there is no compiler.
    """
    if not program.is_file():
        raise InputError("no such file", where=str(program))
    if program.suffix == ".p4":
        pipeline = _compile(program, into)
    elif program.suffix == ".json":
        _check_json(program)
        pipeline = Pipeline(_p4info_beside(program), program)
    else:
        raise InputError("a switch program is FILE.p4 or FILE.json", where=str(program))
    lacking = list(missing(_read(pipeline.p4info), _read(shipped_pipeline().p4info)))
    if lacking:
        rest = f" and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
        names = ", ".join(lacking[:MOST_NAMED])
        raise InputError(f"the controller uses what this program lacks: {names}{rest}", where=str(program))
    return pipeline


def pipeline_of(program: str, into: Path) -> Pipeline:
    """Return the pipeline of ``--program``, or the shipped pipeline if the option is the empty string.

    Raise the errors of load_program.
    """
    return load_program(Path(program), into) if program else shipped_pipeline()


def require_compiler(program: Path) -> None:
    """Raise MachineError if a program is P4 and no p4c-bm2-ss is on PATH."""
    if program.suffix == ".p4" and shutil.which("p4c-bm2-ss") is None:
        raise MachineError("no p4c-bm2-ss on PATH", MEND)


def missing(program: p4i.P4Info, shipped: p4i.P4Info) -> Iterator[str]:
    """Yield each part of the shipped program that the controller uses and this program lacks."""
    tables = {table.preamble.alias: table for table in program.tables}
    actions = {action.preamble.alias: action for action in program.actions}
    aliases = {action.preamble.id: action.preamble.alias for action in program.actions}
    shipped_actions = {action.preamble.id: action for action in shipped.actions}
    for wanted in shipped.tables:
        name = wanted.preamble.alias
        used = TABLE_ACTIONS.get(_last(name))
        if used is None:
            continue
        if name not in tables:
            yield f"table {name}"
            continue
        table = tables[name]
        yield from _missing_fields(name, table, wanted)
        if wanted.direct_resource_ids and not table.direct_resource_ids:
            yield f"direct counter of table {name}"
        here = {aliases[ref.id] for ref in table.action_refs}
        for ref in wanted.action_refs:
            action = shipped_actions[ref.id]
            alias = action.preamble.alias
            if _last(alias) not in used:
                continue
            if alias not in here:
                yield f"action {alias} of table {name}"
                continue
            yield from _missing_params(actions[alias], action)
    if WAYS_PROFILE not in {profile.preamble.alias for profile in program.action_profiles}:
        yield f"action profile {WAYS_PROFILE}"
    counters = {counter.preamble.alias for counter in program.counters}
    for counter in shipped.counters:
        if counter.preamble.alias not in counters:
            yield f"counter {counter.preamble.alias}"


def _missing_fields(name: str, table: p4i.Table, wanted: p4i.Table) -> Iterator[str]:
    fields = {_last(field.name): field for field in table.match_fields}
    for field in wanted.match_fields:
        key = _last(field.name)
        if key not in fields:
            yield f"match field {key} of table {name}"
        elif (fields[key].bitwidth, fields[key].match_type) != (field.bitwidth, field.match_type):
            kind = p4i.MatchField.MatchType.Name(field.match_type).lower()
            yield f"match field {key} of table {name} as {kind} of {field.bitwidth} bits"


def _missing_params(action: p4i.Action, wanted: p4i.Action) -> Iterator[str]:
    widths = {param.name: param.bitwidth for param in action.params}
    name = wanted.preamble.alias
    for param in wanted.params:
        if param.name not in widths:
            yield f"parameter {param.name} of action {name}"
        elif widths[param.name] != param.bitwidth:
            yield f"parameter {param.name} of action {name} with {param.bitwidth} bits"
    known = {param.name for param in wanted.params}
    for param in action.params:
        if param.name not in known:
            yield f"action {name} without parameter {param.name}"


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _compile(program: Path, into: Path) -> Pipeline:
    require_compiler(program)
    into.mkdir(parents=True, exist_ok=True)
    made = Pipeline(into / f"{program.stem}{P4INFO_SUFFIXES[0]}", into / f"{program.stem}.json")
    done = run_p4c(program.resolve(), made.json.resolve(), made.p4info.resolve(), includes=[HERE])
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise InputError(_first(errors or done.stderr.splitlines()), where=f"p4c: {program.name}")
    return made


def _first(lines: list[str]) -> str:
    return re.sub(r"\s+", " ", lines[0]).strip() if lines else "does not compile"


def _p4info_beside(program: Path) -> Path:
    for suffix in P4INFO_SUFFIXES:
        found = program.with_name(f"{program.stem}{suffix}")
        if found.is_file():
            return found
    name = f"{program.stem}{P4INFO_SUFFIXES[0]}"
    message = f"no P4Info beside it: p4c-bm2-ss --p4runtime-files {name} writes it"
    raise InputError(message, where=str(program))


def _read(path: Path) -> p4i.P4Info:
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), p4i.P4Info())
    except (OSError, ValueError, text_format.ParseError) as error:
        raise InputError(f"not a P4Info: {error}", where=str(path)) from None


def _check_json(program: Path) -> None:
    try:
        found = json.loads(program.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"not BMv2 JSON: {error}", where=str(program)) from None
    if not isinstance(found, dict) or "pipelines" not in found:
        raise InputError("not BMv2 JSON: it has no pipelines", where=str(program))
