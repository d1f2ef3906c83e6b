"""Read a switch's program and table entries, in the format of p4lang/tutorials, as P4Runtime updates.

The file is a JSON object with the keys `target` (bmv2), `p4info` and `bmv2_json`, and the lists
`table_entries`, `multicast_group_entries` and `clone_session_entries`. Names are as in the P4Info. Values are
numbers or text: MAC, IPv4 and IPv6 addresses, or numbers in decimal or with 0x.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from mrclab.linux.errors import BadInputError

_MAC = re.compile(r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")


@dataclass(frozen=True)
class Runtime:
    """A compiled P4 program, and the P4Runtime updates that fill its tables."""

    info: p4i.P4Info
    json: bytes
    updates: tuple[p4r.Update, ...]


def read_runtime(path: Path, directory: Path, build: Path | None = None) -> Runtime:
    """Read a switch's program and entries. Paths in the file are relative to `directory`.

    If `build` is given, files of the directory `build/` are read from `build` instead. Raise BadInputError if
    a file is missing or wrong.
    """
    try:
        raw = json.loads(_bytes(path))
        if not isinstance(raw, dict):
            raise BadInputError("not a JSON object")
        if raw.get("target", "bmv2") != "bmv2":
            raise BadInputError(f"target '{raw['target']}' is not bmv2")
        files = []
        for key in ("p4info", "bmv2_json"):
            if not raw.get(key):
                raise BadInputError(f"names no {key}")
            files.append(_bytes(_located(raw[key], directory, build)))
        info = read_p4info(files[0].decode(errors="replace"))
        return Runtime(info, files[1], tuple(updates(raw, info)))
    except BadInputError as exc:
        raise BadInputError(f"{path}: {exc}") from exc
    except ValueError as exc:
        raise BadInputError(f"{path}: not JSON: {exc}") from exc


def read_p4info(text: str) -> p4i.P4Info:
    """Read a P4Info in protobuf's text format. Raise BadInputError if the text is wrong."""
    try:
        return text_format.Parse(text, p4i.P4Info())
    except text_format.ParseError as exc:
        raise BadInputError(f"not a P4Info in text format: {exc}") from exc


def _located(name: str, directory: Path, build: Path | None) -> Path:
    path = Path(name)
    return build / path.name if build is not None and path.parts[:1] == ("build",) else directory / path


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise BadInputError(
            f"{path}: {exc.strerror}"
            + (
                ": compile the program first (make, or p4c-bm2-ss and --build)"
                if "build" in str(path)
                else ""
            )
        ) from exc


def updates(raw: dict[str, Any], info: p4i.P4Info) -> list[p4r.Update]:
    """Return the P4Runtime updates for a switch's entries. Raise BadInputError for a wrong entry."""
    out = []
    for number, entry in enumerate(raw.get("table_entries", [])):
        try:
            out.append(_table_entry(entry, info))
        except BadInputError as exc:
            raise BadInputError(f"table entry {number + 1} ({entry.get('table')}): {exc}") from exc
        except (KeyError, TypeError, AttributeError) as exc:
            raise BadInputError(f"table entry {number + 1}: {type(exc).__name__}: {exc}") from exc
    try:
        out += [_group(g) for g in raw.get("multicast_group_entries", [])]
        out += [_session(s) for s in raw.get("clone_session_entries", [])]
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise BadInputError(f"multicast group or clone session: {type(exc).__name__}: {exc}") from exc
    return out


def _by_name(objects: Any, name: str, what: str) -> Any:
    found = [o for o in objects if name in (o.preamble.name, o.preamble.alias)]
    if not found:
        raise BadInputError(f"the program has no {what} {name}")
    return found[0]


def _table_entry(entry: dict[str, Any], info: p4i.P4Info) -> p4r.Update:
    table = _by_name(info.tables, entry["table"], "table")
    out = p4r.TableEntry(table_id=table.preamble.id, priority=entry.get("priority") or 0)
    fields = {f.name: f for f in table.match_fields}
    for name, value in (entry.get("match") or {}).items():
        if name not in fields:
            raise BadInputError(f"its key has no {name}")
        _match(out, fields[name], value)
    action = _by_name(info.actions, entry["action_name"], "action")
    out.action.action.action_id = action.preamble.id
    given = dict(entry.get("action_params") or {})
    for p in action.params:
        if p.name not in given:
            raise BadInputError(f"action {action.preamble.name} needs {p.name}")
        out.action.action.params.add(param_id=p.id, value=octets(given.pop(p.name), p.bitwidth))
    if given:
        raise BadInputError(f"action {action.preamble.name} has no {', '.join(given)}")
    kind = p4r.Update.INSERT
    if entry.get("default_action"):
        out.is_default_action, kind = True, p4r.Update.MODIFY
    return p4r.Update(type=kind, entity=p4r.Entity(table_entry=out))


def _match(out: p4r.TableEntry, field: p4i.MatchField, value: Any) -> None:
    """Add a field's match to an entry. If the match accepts all values, add nothing (P4Runtime's rule)."""
    bits, kinds = field.bitwidth, p4i.MatchField
    pair = value if isinstance(value, list) else [value]
    needs = {kinds.LPM: 2, kinds.TERNARY: 2, kinds.RANGE: 2}.get(field.match_type, 1)
    if len(pair) != needs:
        raise BadInputError(f"{field.name} needs {'two values' if needs == 2 else 'one value'}")
    number = value_of(pair[0], bits)
    match field.match_type:
        case kinds.LPM:
            length = value_of(pair[1], 8)
            if length > bits:
                raise BadInputError(f"{field.name}: a prefix of {length} of {bits} bits")
            if length:
                m = out.match.add(field_id=field.id)
                rest = bits - length
                m.lpm.value, m.lpm.prefix_len = _octets(number >> rest << rest), length
        case kinds.TERNARY:
            if mask := value_of(pair[1], bits):
                m = out.match.add(field_id=field.id)
                m.ternary.value, m.ternary.mask = _octets(number & mask), _octets(mask)
        case kinds.RANGE:
            high = value_of(pair[1], bits)
            if (number, high) != (0, (1 << bits) - 1):
                m = out.match.add(field_id=field.id)
                m.range.low, m.range.high = _octets(number), _octets(high)
        case kinds.OPTIONAL:
            out.match.add(field_id=field.id).optional.value = _octets(number)
        case kinds.EXACT:
            out.match.add(field_id=field.id).exact.value = _octets(number)
        case _:
            raise BadInputError(f"{field.name} has a kind of match that is not known")


def value_of(value: Any, bits: int) -> int:
    """Convert an int, an address or digits to a number. Raise BadInputError if it exceeds `bits` bits."""
    number = _number(value)
    if number is None:
        raise BadInputError(f"'{value}' is no number and no address")
    if not 0 <= number < 1 << bits:
        raise BadInputError(f"{value} does not fit into {bits} bits")
    return number


def _number(value: Any) -> int | None:
    if isinstance(value, bool | int):
        return int(value)
    if not isinstance(value, str):
        return None
    if _MAC.match(value):
        return int(value.replace(":", ""), 16)
    try:
        return int(value, 0)
    except ValueError:
        pass
    try:
        return int(ipaddress.ip_address(value))
    except ValueError:
        return None


def octets(value: Any, bits: int) -> bytes:
    """Return a value in P4Runtime's form: big-endian bytes without leading zeros."""
    return _octets(value_of(value, bits))


def _octets(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def _replicas(to: Any, replicas: list[dict[str, Any]]) -> None:
    for r in replicas:
        to.add(egress_port=int(r["egress_port"]), instance=int(r.get("instance", 1)))


def _group(raw: dict[str, Any]) -> p4r.Update:
    out = p4r.Update(type=p4r.Update.INSERT)
    group = out.entity.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = int(raw["multicast_group_id"])
    _replicas(group.replicas, raw["replicas"])
    return out


def _session(raw: dict[str, Any]) -> p4r.Update:
    out = p4r.Update(type=p4r.Update.INSERT)
    session = out.entity.packet_replication_engine_entry.clone_session_entry
    session.session_id = int(raw["clone_session_id"])
    session.packet_length_bytes = int(raw.get("packet_length_bytes", 0))
    _replicas(session.replicas, raw["replicas"])
    return out
