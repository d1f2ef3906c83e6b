"""BMv2 JSON written by hand, with forms that p4c never writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ERRORS = ("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout",
          "ParserInvalidArgument")  # fmt: skip
_STANDARD = (
    ("ingress_port", 9), ("egress_spec", 9), ("egress_port", 9), ("instance_type", 32), ("packet_length",
    32), ("enq_timestamp", 32), ("enq_qdepth", 19), ("deq_timedelta", 32), ("deq_qdepth", 19),
    ("ingress_global_timestamp", 48), ("egress_global_timestamp", 48), ("mcast_grp", 16), ("egress_rid",
    16), ("checksum_error", 1), ("parser_error", 32), ("priority", 3), ("_padding", 3),
)  # fmt: skip


def field(header: str, name: str) -> dict[str, Any]:
    return {"type": "field", "value": [header, name]}


def number(value: int) -> dict[str, Any]:
    return {"type": "hexstr", "value": hex(value)}


def named(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "value": name}


def op(what: str, left: Any, right: Any, **more: Any) -> dict[str, Any]:
    return {"type": "expression", "value": {"op": what, "left": left, "right": right, **more}}


def do(what: str, *args: Any) -> dict[str, Any]:
    return {"op": what, "parameters": list(args)}


def extract(kind: str, value: object) -> dict[str, Any]:
    return do("extract", {"type": kind, "value": value})


def assign(to: Any, value: Any) -> dict[str, Any]:
    return do("assign", to, value)


def state(
    name: str, ops: Sequence[Any], key: Sequence[Any] = (), transitions: Sequence[tuple[Any, str | None]] = ()
) -> dict[str, Any]:
    """Return a parser state. A transition's key is a number, a value set's name, or None (default)."""
    out = []
    for value, following in transitions or [(None, None)]:
        kind = {int: "hexstr", str: "parse_vset"}.get(type(value), "default")
        shown = hex(value) if isinstance(value, int) else value
        out.append({"type": kind, "value": shown, "mask": None, "next_state": following})
    return {
        "name": name,
        "id": 0,
        "parser_ops": list(ops),
        "transition_key": list(key),
        "transitions": out,
    }


def if_(condition: Any, *then: Any) -> list[Any]:
    """Return statements of an action that run only if a condition is true."""
    return [("if", op("b2d", None, condition), list(then))]


def _flat(statements: Sequence[Any], at: int = 0) -> list[Any]:
    """Replace each `if_` by jumps. The first statement has number `at` in its action."""
    out: list[Any] = []
    for s in statements:
        if isinstance(s, list):
            out += _flat(s, at + len(out))
        elif isinstance(s, tuple):
            _, condition, then = s
            inner = _flat(then, at + len(out) + 1)
            out += [do("_jump_if_zero", condition, number(at + len(out) + 1 + len(inner))), *inner]
        else:
            out.append(s)
    return out


def program(
    types: Mapping[str, Sequence[tuple[str, int | str]]],
    headers: Mapping[str, str],
    states: Sequence[dict[str, Any]],
    statements: Sequence[Any],
    order: Sequence[str],
    *,
    varbits: Mapping[str, int] | None = None,
    stacks: Mapping[str, Sequence[str]] | None = None,
    unions: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    union_stacks: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    union_types: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    **more: Any,
) -> str:
    """Return a program whose ingress is one action.

    `varbits` maps each header type of variable length to its largest size in bytes. A type whose name begins
    with `meta` is a type of metadata.
    """
    all_types = {"standard_metadata": _STANDARD, **types}
    all_headers = {"standard_metadata": "standard_metadata", **headers}
    ids = {name: i for i, name in enumerate(all_headers)}
    union_ids = {name: i for i, name in enumerate(unions or {})}
    control = {"id": 0, "tables": [], "action_profiles": [], "conditionals": []}
    out = {
        "program": "handmade",
        "header_types": [
            {
                "name": name,
                "id": i,
                "fields": [[f, w, False] if isinstance(w, int) else [f, w] for f, w in fields],
                "max_length": (varbits or {}).get(name),
            }
            for i, (name, fields) in enumerate(all_types.items())
        ],
        "headers": [
            {
                "name": name,
                "id": ids[name],
                "header_type": kind,
                "metadata": kind.startswith(("meta", "standard")),
            }
            for name, kind in all_headers.items()
        ],
        "header_stacks": [
            {"name": n, "id": i, "size": len(m), "header_ids": [ids[h] for h in m]}
            for i, (n, m) in enumerate((stacks or {}).items())
        ],
        "header_union_types": [
            {"name": n, "id": i, "headers": [list(h) for h in hs]}
            for i, (n, hs) in enumerate((union_types or {}).items())
        ],
        "header_unions": [
            {"name": n, "id": union_ids[n], "union_type": kind, "header_ids": [ids[h] for h in hs]}
            for n, (kind, hs) in (unions or {}).items()
        ],
        "header_union_stacks": [
            {
                "name": n,
                "id": i,
                "union_type": kind,
                "size": len(us),
                "header_union_ids": [union_ids[u] for u in us],
            }
            for i, (n, (kind, us)) in enumerate((union_stacks or {}).items())
        ],
        "parsers": [
            {"name": "parser", "id": 0, "init_state": states[0]["name"], "parse_states": list(states)}
        ],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(order)}],
        "errors": [[name, i] for i, name in enumerate(ERRORS)],
        "actions": [{"name": "act", "id": 0, "runtime_data": [], "primitives": _flat(statements)}],
        "pipelines": [
            {
                **control,
                "name": "ingress",
                "init_table": "node_1",
                "action_calls": [{"name": "node_1", "id": 0, "action_id": 0, "next_node": None}],
            },
            {**control, "name": "egress", "init_table": None},
        ],
        **more,
    }
    return json.dumps(out)
