"""Reader of the BMv2 JSON that p4c writes for v1model.

The format is described in docs/JSON_format.md of p4lang/behavioral-model (version 2.24). This module checks
only the form of the JSON. If a target cannot run a construct of the program, the target raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mrclab.linux.errors import BadInputError, UnsupportedError
from mrclab.switches.v1model.declarations import (
    Action,
    ActionParam,
    ActionProfile,
    Bits,
    Calculation,
    Checksum,
    CounterArray,
    DigestList,
    Field,
    FieldList,
    Header,
    HeaderStack,
    HeaderType,
    HeaderUnion,
    MeterArray,
    RegisterArray,
    UnionStack,
    UnsupportedPart,
    ValueSet,
    Varbit,
)
from mrclab.switches.v1model.expressions import (
    NOWHERE,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Op,
    Param,
    Primitive,
    Source,
    StackField,
    Text,
    UnionStackField,
    UnionStackHeader,
    Vector,
)
from mrclab.switches.v1model.program import (
    ActionCall,
    Conditional,
    ConstEntry,
    ConstMatch,
    DefaultEntry,
    Deparser,
    KeyField,
    Node,
    Parser,
    ParserState,
    Pipeline,
    Program,
    Table,
    Transition,
)


def _number(text: str | int) -> int:
    return text if isinstance(text, int) else int(text, 16)


def _source(obj: Mapping[str, Any]) -> Source:
    info = obj.get("source_info")
    if not info:
        return NOWHERE
    return Source(info.get("filename", ""), int(info.get("line", 0)))


def _expr(obj: Any) -> Expr:
    if isinstance(obj, int):
        return Const(obj)
    if "op" in obj and "type" not in obj:
        left, right, cond = (obj.get(k) for k in ("left", "right", "cond"))
        return Op(
            obj["op"],
            None if left is None else _expr(left),
            None if right is None else _expr(right),
            None if cond is None else _expr(cond),
        )
    kind, value = obj["type"], obj.get("value")
    match kind:
        case "expression":
            return _expr(value)
        case "field" if isinstance(value[0], dict):  # the field $valid$ of an element of a header stack
            return Op("valid", None, _expr(value[0]))
        case "field":
            return FieldRef(*value)
        case "hexstr":
            return Const(_number(value))
        case "bool":
            return BoolConst(bool(value))
        case "runtime_data" | "local":
            return Param(int(value))
        case "stack_field":
            return StackField(*value)
        case "union_stack":
            return UnionStackHeader(*value)
        case "union_stack_field":
            return UnionStackField(*value)
        case "lookahead":
            return Lookahead(*value)
        case "string":
            return Text(value)
        case "parameters_vector":
            return Vector(tuple(_expr(v) for v in value))
        case "regular":
            return Name("header", value)
        case "stack":
            return Name("header_stack", value)
    if isinstance(value, str):
        return Name(kind, value)
    return Name(kind, json.dumps(value))


def _primitive(obj: Mapping[str, Any]) -> Primitive:
    if obj["op"] == "primitive":  # in a parser, p4c wraps a statement in an operation "primitive"
        inner = obj["parameters"][0]
        return _primitive({**inner, "source_info": inner.get("source_info") or obj.get("source_info")})
    return Primitive(obj["op"], tuple(_expr(p) for p in obj.get("parameters", [])), _source(obj))


def _header_type(obj: Mapping[str, Any]) -> HeaderType:
    fields: list[Field] = []
    offset, varbit = 0, None
    for name, width, *rest in obj["fields"]:
        if width == "*":
            varbit = name, offset
            continue
        fields.append(Field(name, width, bool(rest and rest[0]), offset))
        offset += width
    if varbit is None:
        return HeaderType(obj["name"], tuple(fields))
    size = (obj.get("max_length") or 0) - offset // 8
    return HeaderType(obj["name"], tuple(fields), Varbit(*varbit, max(size, 0)))


def _parser(obj: Mapping[str, Any]) -> Parser:
    states = {}
    for s in obj["parse_states"]:
        transitions = tuple(
            Transition(
                t.get("type", "hexstr"),
                _number(t["value"]) if t.get("type") == "hexstr" else 0,
                _number(t["mask"]) if t.get("mask") is not None else None,
                t["next_state"],
                t["value"] if t.get("type") == "parse_vset" else None,
            )
            for t in s["transitions"]
        )
        states[s["name"]] = ParserState(
            s["name"],
            tuple(_primitive(o) for o in s["parser_ops"]),
            tuple(_expr(k) for k in s["transition_key"]),
            transitions,
            _source(s),
        )
    return Parser(obj["name"], obj["init_state"], states)


def _const_entry(obj: Mapping[str, Any]) -> ConstEntry:
    keys = []
    for k in obj["match_key"]:
        kind = k["match_type"]
        if kind == "range":
            keys.append(ConstMatch(kind, _number(k["start"]), end=_number(k["end"])))
            continue
        raw = k["key"]
        mask = _number(k["mask"]) if k.get("mask") is not None else 0
        keys.append(
            ConstMatch(
                kind, int(raw) if isinstance(raw, bool) else _number(raw), mask, k.get("prefix_length", 0)
            )
        )
    action = obj["action_entry"]
    data = tuple(_number(d) for d in action["action_data"])
    return ConstEntry(tuple(keys), action["action_id"], data, obj.get("priority", 0))


def _table(obj: Mapping[str, Any]) -> Table:
    for k in obj["key"]:
        if isinstance(k["target"], dict):
            # p4c writes a dict if the index of a header stack is computed. BMv2 cannot load such a program.
            name = k.get("name") or "of an expression"
            raise UnsupportedError(
                f"key {name} of table {obj['name']}, which is no field,", str(_source(obj))
            )
    key = tuple(
        KeyField(
            k["match_type"],
            FieldRef(*k["target"]) if isinstance(k["target"], list) else FieldRef(k["target"], "$valid$"),
            _number(k["mask"]) if k.get("mask") is not None else None,
            k.get("name") or ".".join(k["target"]),
        )
        for k in obj["key"]
    )
    default = obj.get("default_entry")
    return Table(
        name=obj["name"],
        id=obj["id"],
        key=key,
        match=obj["match_type"],
        kind=obj["type"],
        size=obj.get("max_size", 1024),
        with_counters=bool(obj.get("with_counters")),
        support_timeout=bool(obj.get("support_timeout")),
        direct_meters=obj.get("direct_meters"),
        action_ids=tuple(obj["action_ids"]),
        base_default_next=obj.get("base_default_next"),
        next_by_action=dict(obj["next_tables"]),
        default=None
        if default is None
        else DefaultEntry(
            default["action_id"],
            tuple(_number(d) for d in default.get("action_data", [])),
            bool(default.get("action_entry_const", False)),
        ),
        entries=tuple(_const_entry(e) for e in obj.get("entries", [])),
        profile=obj.get("action_profile"),
        source=_source(obj),
    )


def _meter(obj: Mapping[str, Any]) -> MeterArray:
    target = obj.get("result_target")
    return MeterArray(
        name=obj["name"],
        size=obj.get("size", 0),
        packets=obj["type"] == "packets",
        rates=obj.get("rate_count", 2),
        table=obj.get("binding"),
        result=None if target is None else FieldRef(*target),
        source=_source(obj),
    )


def _pipeline(obj: Mapping[str, Any]) -> Pipeline:
    nodes: dict[str, Node] = {t["name"]: _table(t) for t in obj["tables"]}
    for c in obj["conditionals"]:
        nodes[c["name"]] = Conditional(
            c["name"], _expr(c["expression"]), c["true_next"], c["false_next"], _source(c)
        )
    for a in obj.get("action_calls", []):
        nodes[a["name"]] = ActionCall(a["name"], a["action_id"], a["next_node"], _source(a))
    return Pipeline(obj["name"], obj["init_table"], nodes)


def _union_stacks(raw: Mapping[str, Any]) -> dict[str, UnionStack]:
    types = {t["name"]: tuple(h[0] for h in t["headers"]) for t in raw.get("header_union_types", [])}
    by_id = {u["id"]: u["name"] for u in raw.get("header_unions", [])}
    return {
        s["name"]: UnionStack(
            s["name"], tuple(by_id[i] for i in s["header_union_ids"]), types[s["union_type"]]
        )
        for s in raw.get("header_union_stacks", [])
    }


def _unsupported(raw: Mapping[str, Any]) -> tuple[UnsupportedPart, ...]:
    kinds = {
        "extern_instances": "extern",
    }
    named = [(what, o) for key, what in kinds.items() for o in raw.get(key, [])]
    named += [("checksum", c) for c in raw.get("checksums", []) if c.get("type") != "generic"]
    return tuple(UnsupportedPart(what, o["name"], _source(o)) for what, o in named)


def _hashed(obj: Mapping[str, Any]) -> FieldRef | Bits | Name:
    match obj["type"]:
        case "field":
            return FieldRef(*obj["value"])
        case "hexstr":
            return Bits(_number(obj["value"]), obj["bitwidth"])
        case kind:
            return Name(kind, obj.get("value", kind))


def _calculation(name: str, obj: Mapping[str, Any], source: Source) -> Calculation:
    return Calculation(name, obj["algo"], tuple(_hashed(i) for i in obj["input"]), source)


def _checksum(obj: Mapping[str, Any]) -> Checksum:
    condition = obj.get("if_cond")
    return Checksum(
        name=obj["name"],
        calculation=obj["calculation"],
        target=FieldRef(*obj["target"]),
        verify=bool(obj.get("verify", True)),
        update=bool(obj.get("update", True)),
        condition=None if condition is None else _expr(condition),
        source=_source(obj),
    )


def _profile(obj: Mapping[str, Any]) -> ActionProfile:
    selector, source = obj.get("selector"), _source(obj)
    hashed = None if selector is None else _calculation(obj["name"], selector, source)
    return ActionProfile(obj["name"], obj.get("max_size", 0), hashed, source)


def read_program(data: bytes | str) -> Program:
    """Read the BMv2 JSON of a v1model program.

    Raise BadInputError if the text is not the JSON of a v1model program. Raise UnsupportedError for a
    construct that p4c writes but that no target can run.
    """
    try:
        raw = json.loads(data)
        types = {t["name"]: _header_type(t) for t in raw["header_types"]}
        for h in raw["headers"]:
            if h["header_type"] in {u["name"] for u in raw.get("header_union_types", [])}:
                # Sometimes p4c lists a header union as a header. BMv2 cannot load such a program.
                raise UnsupportedError(
                    f"header union {h['name']}, which p4c has written as a header,",
                    PurePath(raw.get("program", "")).name,
                )
        headers = {
            h["name"]: Header(h["name"], types[h["header_type"]], h["metadata"]) for h in raw["headers"]
        }
        by_id = {h["id"]: h["name"] for h in raw["headers"]}
        pipelines = {p["name"]: _pipeline(p) for p in raw["pipelines"]}
        actions = {
            a["id"]: Action(
                a["name"],
                a["id"],
                tuple(ActionParam(d["name"], d["bitwidth"]) for d in a["runtime_data"]),
                tuple(_primitive(p) for p in a["primitives"]),
                _source(a),
            )
            for a in raw["actions"]
        }
        return Program(
            name=raw.get("program", ""),
            headers=headers,
            stacks={
                s["name"]: HeaderStack(s["name"], tuple(by_id[i] for i in s["header_ids"]))
                for s in raw.get("header_stacks", [])
            },
            parser=_parser(raw["parsers"][0]),
            ingress=pipelines["ingress"],
            egress=pipelines["egress"],
            deparser=Deparser(
                tuple(raw["deparsers"][0]["order"]),
                tuple(_primitive(p) for p in raw["deparsers"][0].get("primitives", [])),
            ),
            actions=actions,
            counters={
                c["name"]: CounterArray(c["name"], c["id"], c.get("size", 0), c.get("binding"))
                for c in raw.get("counter_arrays", [])
            },
            registers={
                r["name"]: RegisterArray(r["name"], r["size"], r["bitwidth"], _source(r))
                for r in raw.get("register_arrays", [])
            },
            meters={m["name"]: _meter(m) for m in raw.get("meter_arrays", [])},
            value_sets={
                v["name"]: ValueSet(v["name"], v["compressed_bitwidth"], v.get("max_size", 0), _source(v))
                for v in raw.get("parse_vsets", [])
            },
            digests={
                d["id"]: DigestList(
                    d["name"], d["id"], tuple(FieldRef(*e["value"]) for e in d["elements"]), _source(d)
                )
                for d in raw.get("learn_lists", [])
            },
            field_lists={
                f["id"]: FieldList(
                    f["name"],
                    f["id"],
                    tuple(FieldRef(*e["value"]) for e in f["elements"] if e["type"] == "field"),
                    _source(f),
                )
                for f in raw.get("field_lists", [])
            },
            calculations={
                c["name"]: _calculation(c["name"], c, _source(c)) for c in raw.get("calculations", [])
            },
            profiles={o["name"]: _profile(o) for p in raw["pipelines"] for o in p.get("action_profiles", [])},
            checksums=tuple(_checksum(c) for c in raw.get("checksums", []) if c.get("type") == "generic"),
            errors=dict(raw.get("errors", [])),
            unsupported=_unsupported(raw),
            unions={
                u["name"]: HeaderUnion(u["name"], tuple(by_id[i] for i in u["header_ids"]))
                for u in raw.get("header_unions", [])
            },
            union_stacks=_union_stacks(raw),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as exc:
        raise BadInputError(f"not the BMv2 JSON of a v1model program: {type(exc).__name__}: {exc}") from exc
