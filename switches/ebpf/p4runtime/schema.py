"""Bind the ids of a P4Info to the parts of a compiled program, and convert entries from and to messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finsy.proto import p4i, p4r, p4t

from mrclab.switches.ebpf.p4runtime.packet_io import ControllerHeader, controller_headers
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import (
    KINDS,
    DataTypes,
    decode,
    encode,
    read_match,
    write_match,
)
from mrclab.switches.ebpf.plan import (
    TO_GROUP,
    TO_MEMBER,
    ActionLayout,
    Compiled,
    CounterLayout,
    MeterLayout,
    ProfileLayout,
    RegisterLayout,
    TableLayout,
    ValueSetLayout,
)
from mrclab.switches.ebpf.runtime.entries import Action, Entry, Ident, Match, Reference
from mrclab.switches.v1model.program import Table

# For a match kind in the P4Info: the match kinds that p4c may write into the BMv2 JSON.
_IN_JSON = {"exact": ("exact", "valid"), "optional": ("optional", "ternary"), "lpm": ("lpm", "ternary")}


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


@dataclass(frozen=True)
class ActionSchema:
    """An action of a table. `scope` allows the action for entries, as the default action, or for both."""

    id: int
    name: str
    layout: ActionLayout
    param_ids: tuple[int, ...]
    scope: int


@dataclass(frozen=True)
class ProfileSchema:
    """An action profile: its id and limits from the P4Info, and its layout in the compiled program."""

    id: int
    layout: ProfileLayout
    max_group_size: int
    sum_of_members: bool
    max_member_weight: int
    weights_disallowed: bool


@dataclass(frozen=True)
class TableSchema:
    """A table: its parts in the P4Info (key fields, actions, counter), and its layout in the program."""

    id: int
    name: str
    layout: TableLayout
    source: Table
    fields: tuple[p4i.MatchField, ...]
    actions: dict[int, ActionSchema]
    by_number: dict[int, ActionSchema]
    counter_id: int
    const_default: bool
    const_table: bool
    meter_id: int = 0
    idle_timeout: bool = False
    profile: ProfileSchema | None = None

    @property
    def prioritised(self) -> bool:
        """True if entries have a priority: a key field is ternary, range or optional."""
        kinds = {f.match_type for f in self.fields}
        return bool(kinds & {p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL})

    @property
    def widths(self) -> list[int]:
        """The widths of the key's fields, in bits."""
        return [slot.width for slot in self.layout.key]

    def read_match(self, matches: Iterable[p4r.FieldMatch]) -> tuple[Match, ...]:
        """Read the match of each key field from a message, in the order of the key."""
        return read_match(f"table {self.name}", self.fields, self.widths, matches)

    def read_action(self, action: p4r.TableAction, default: bool) -> Action:
        """Read an action with its arguments from the message `TableAction` of an entry."""
        if action.WhichOneof("type") != "action" or self.profile is not None:
            what = "members, groups or one-shots only" if self.profile is not None else "plain actions only"
            raise _bad(f"table {self.name} takes {what}")
        return self.read_plain(action.action, default)

    def read_plain(self, wanted: p4r.Action, default: bool = False) -> Action:
        """Read an action with its arguments from the message `Action`, a part of several other messages."""
        known = self.actions.get(wanted.action_id)
        if known is None:
            raise _bad(f"table {self.name} has no action {wanted.action_id}")
        barred = p4i.ActionRef.TABLE_ONLY if default else p4i.ActionRef.DEFAULT_ONLY
        if known.scope == barred:
            place = "the default" if default else "an entry"
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, f"action {known.name} is not for {place} of {self.name}"
            )
        given: dict[int, bytes] = {}
        for p in wanted.params:
            if p.param_id in given or p.param_id not in known.param_ids:
                raise _bad(f"action {known.name}: parameter {p.param_id} is unknown or given twice")
            given[p.param_id] = p.value
        missing = [i for i in known.param_ids if i not in given]
        if missing:
            raise _bad(f"action {known.name}: parameter {missing[0]} is missing")
        args = tuple(
            decode(given[i], slot.width, f"{known.name}, {slot.name}")
            for i, slot in zip(known.param_ids, known.layout.params, strict=True)
        )
        return Action(known.layout, args)

    def write_action(self, action: Action | Reference, to: p4r.TableEntry) -> None:
        """Write an entry's action, or its reference to a member or group, into a message."""
        if isinstance(action, Action):
            self.write_plain(action, to.action.action)
        elif action.one_shot:
            to.action.action_profile_action_set.ParseFromString(action.one_shot)
        elif action.kind == TO_MEMBER:
            to.action.action_profile_member_id = action.id
        else:
            to.action.action_profile_group_id = action.id

    def has_action(self, action: Action | Reference, wanted: p4r.TableAction) -> bool:
        """Return True if a read request names the action, member or group of an entry."""
        if isinstance(action, Action):
            return self.by_number[action.layout.number].id == wanted.action.action_id
        match wanted.WhichOneof("type"):
            case "action_profile_member_id":
                return (action.kind, action.id) == (TO_MEMBER, wanted.action_profile_member_id)
            case "action_profile_group_id":
                return (action.kind, action.id) == (TO_GROUP, wanted.action_profile_group_id)
        return False

    def write_plain(self, action: Action, to: p4r.Action) -> None:
        """Write an action with its arguments into the message `Action`, a part of several other messages."""
        known = self.by_number[action.layout.number]
        to.action_id = known.id
        for i, arg in zip(known.param_ids, action.args, strict=True):
            to.params.add(param_id=i, value=encode(arg))

    def read_ident(self, message: p4r.TableEntry) -> Ident:
        """Read the identity of an entry of the table: its match and its priority."""
        match = self.read_match(message.match)
        if self.prioritised and message.priority <= 0:
            raise _bad(f"table {self.name}: an entry needs a priority above 0")
        if not self.prioritised and message.priority != 0:
            raise _bad(f"table {self.name}: an entry takes no priority")
        return match, message.priority

    def write_entry(self, entry: Entry) -> p4r.TableEntry:
        """Return an entry as a message, without its counter."""
        out = p4r.TableEntry(
            table_id=self.id,
            priority=entry.priority,
            metadata=entry.metadata,
            controller_metadata=entry.cookie,
            idle_timeout_ns=entry.timeout_ns,
            is_const=self.const_table,
        )
        write_match(self.fields, self.widths, entry.match, out)
        self.write_action(entry.action, out)
        return out


@dataclass(frozen=True)
class ValueSetSchema:
    """A parser value set: its fields in the P4Info, and its maximum number of members."""

    name: str
    layout: ValueSetLayout
    fields: tuple[p4i.MatchField, ...]
    size: int


@dataclass(frozen=True)
class Schema:
    """The parts of a compiled program, by their ids in the P4Info."""

    tables: dict[int, TableSchema]
    counters: dict[int, CounterLayout]
    direct_counters: dict[int, int]  # counter id -> table id
    registers: dict[int, RegisterLayout]
    profiles: dict[int, ProfileSchema]
    meters: dict[int, MeterLayout]
    digests: dict[int, p4t.P4DataTypeSpec]
    digest_names: dict[int, str]
    value_sets: dict[int, ValueSetSchema]
    packet_headers: dict[str, ControllerHeader]
    register_types: dict[int, p4t.P4DataTypeSpec]
    types: DataTypes

    def actions_of(self, profile: ProfileSchema) -> TableSchema | None:
        """Return a table that uses a profile, or None. The table has the actions of the profile's members."""
        return next((t for t in self.tables.values() if t.profile is profile), None)

    def tables_of(self, table_id: int) -> list[TableSchema]:
        """Return the table with an id, or all tables for id 0. Raise the errors of `table`."""
        return [self.table(table_id)] if table_id else list(self.tables.values())

    @staticmethod
    def cells(name: str, size: int, entry: p4r.CounterEntry | p4r.RegisterEntry | p4r.MeterEntry) -> range:
        """Return the requested cell; without an index, all cells. Raise P4RuntimeError for a wrong index."""
        if not entry.HasField("index"):
            return range(size)
        at = entry.index.index
        if at < 0:
            raise _bad(f"{name}: index {at} is negative")
        if at >= size:
            raise P4RuntimeError(Code.OUT_OF_RANGE, f"{name} has no index {at}")
        return range(at, at + 1)

    def table(self, table_id: int) -> TableSchema:
        """Return the table with an id. Raise P4RuntimeError NOT_FOUND if there is no such table."""
        if table_id not in self.tables:
            raise P4RuntimeError(Code.NOT_FOUND, f"no table {table_id}")
        return self.tables[table_id]


def bind(info: p4i.P4Info, compiled: Compiled) -> Schema:
    """Find each part that a P4Info names in the compiled program.

    Raise P4RuntimeError INVALID_ARGUMENT if P4Info and compiled program belong to different P4 programs.
    """
    if info.externs:
        raise _bad(f"extern {info.externs[0].extern_type_name} is not supported by this target")
    _check_translations(info, compiled)
    actions = {a.preamble.id: a for a in info.actions}
    profiles = {p.preamble.id: _profile(p, compiled) for p in info.action_profiles}
    sources = {t.name: t for t in compiled.program.tables()}
    tables = {}
    for t in info.tables:
        name = t.preamble.name
        if name not in compiled.plan.tables:
            if _any_table(info, compiled):
                continue  # p4c omits unreachable tables from the JSON; BMv2 accepts this too
            raise _bad(f"P4Info and device config differ: the config has no table {name}")
        if bool(t.implementation_id) != (compiled.plan.tables[name].profile is not None):
            raise _bad(f"P4Info and device config differ in the action profile of table {name}")
        profile = profiles.get(t.implementation_id)
        tables[t.preamble.id] = _table(t, compiled.plan.tables[name], sources[name], actions, profile)
    counters = {}
    for c in info.counters:
        if c.preamble.name not in compiled.plan.counters:
            raise _bad(f"P4Info and device config differ: the config has no counter {c.preamble.name}")
        counters[c.preamble.id] = compiled.plan.counters[c.preamble.name]
    direct = {c.preamble.id: c.direct_table_id for c in info.direct_counters if c.direct_table_id in tables}
    registers = {}
    for r in info.registers:
        if r.preamble.name not in compiled.plan.registers:
            raise _bad(f"P4Info and device config differ: the config has no register {r.preamble.name}")
        registers[r.preamble.id] = compiled.plan.registers[r.preamble.name]
    meters = {}
    for m in info.meters:
        if m.preamble.name not in compiled.plan.meters:
            raise _bad(f"P4Info and device config differ: the config has no meter {m.preamble.name}")
        _check_meter(m.spec, m.preamble.name)
        meters[m.preamble.id] = compiled.plan.meters[m.preamble.name]
    for d in info.direct_meters:
        _check_meter(d.spec, d.preamble.name)
    types = DataTypes(info.type_info, {number: name for name, number in compiled.program.errors.items()})
    names = {d.preamble.id: d.preamble.name for d in info.digests}
    known = {d.name: len(d.fields) for d in compiled.plan.digests.values()}
    for digest in info.digests:
        name = digest.preamble.name
        if name not in known:
            raise _bad(f"P4Info and device config differ: the config has no digest {name}")
        if not types.takes(digest.type_spec, known[name]):
            raise _bad(f"P4Info and device config differ in the fields of digest {name}")
    digests = {d.preamble.id: d.type_spec for d in info.digests}
    value_sets = {v.preamble.id: _value_set(v, compiled) for v in info.value_sets}
    packets = controller_headers(info)
    return Schema(
        tables,
        counters,
        direct,
        registers,
        profiles,
        meters,
        digests,
        names,
        value_sets,
        packets,
        {r.preamble.id: r.type_spec for r in info.registers},
        types,
    )


def _check_translations(info: p4i.P4Info, compiled: Compiled) -> None:
    """Raise P4RuntimeError if values have another form for the client than in the program.

    In a P4Info the annotation @p4runtime_translation is a new type with a number of bits or a string.
    """
    forms = {
        name: f"{t.translated_type.sdn_bitwidth} bits" if t.translated_type.sdn_bitwidth else "a string"
        for name, t in info.type_info.new_types.items()
        if t.HasField("translated_type")
    }

    def check(what: str, kind: str, bits: int, width: int) -> None:
        if kind in forms and bits != width:
            raise _bad(
                f"{what}: type {kind} is translated to {forms[kind]} (@p4runtime_translation), which is not "
                "supported by this target"
            )

    for t in info.tables:
        layout = compiled.plan.tables.get(t.preamble.name)
        for f, slot in zip(t.match_fields, layout.key if layout else (), strict=False):
            check(
                f"match field {f.name} of table {t.preamble.name}", f.type_name.name, f.bitwidth, slot.width
            )
    params = {a.name: a.params for a in compiled.program.actions.values()}
    for a in info.actions:
        for p, param in zip(a.params, params.get(a.preamble.name, ()), strict=False):
            check(f"parameter {p.name} of {a.preamble.name}", p.type_name.name, p.bitwidth, param.width)
    for v in info.value_sets:
        members = compiled.plan.value_sets.get(v.preamble.name)
        for f, slot in zip(v.match, members.key if members else (), strict=False):
            check(f"field {f.name} of value set {v.preamble.name}", f.type_name.name, f.bitwidth, slot.width)
    for header in info.controller_packet_metadata:
        names = [m.name for m in header.metadata]
        for kind in {h.type.name: h.type for h in compiled.program.headers.values()}.values():
            if [f.name for f in kind.fields] == names:
                for m, field in zip(header.metadata, kind.fields, strict=True):
                    what = f"metadata {m.name} of {header.preamble.name}"
                    check(what, m.type_name.name, m.bitwidth, field.width)


def _any_table(info: p4i.P4Info, compiled: Compiled) -> bool:
    """Return True if P4Info and program share a table. If not, they belong to different programs."""
    return any(t.preamble.name in compiled.plan.tables for t in info.tables)


def _value_set(v: p4i.ValueSet, compiled: Compiled) -> ValueSetSchema:
    name = v.preamble.name
    layout = compiled.plan.value_sets.get(name)
    if layout is None or [f.bitwidth for f in v.match] != [s.width for s in layout.key]:
        raise _bad(f"P4Info and device config differ in value set {name}")
    for f in v.match:
        if f.match_type not in KINDS:
            raise _bad(f"value set {name}: match kind {f.other_match_type} is not supported by this target")
    return ValueSetSchema(name, layout, tuple(v.match), min(v.size or layout.size, layout.size))


def _check_meter(spec: p4i.MeterSpec, name: str) -> None:
    if spec.type != p4i.MeterSpec.TWO_RATE_THREE_COLOR:
        raise _bad(f"meter {name}: only two-rate three-colour meters are supported by this target")


def _profile(p: p4i.ActionProfile, compiled: Compiled) -> ProfileSchema:
    name = p.preamble.name
    layout = compiled.plan.profiles.get(name)
    if layout is None or p.with_selector != (layout.group_map is not None):
        raise _bad(f"P4Info and device config differ in action profile {name}")
    if p.max_group_size > layout.group_capacity:
        raise _bad(f"action selector {name}: groups have at most {layout.group_capacity} places here")
    by_members = p.WhichOneof("selector_size_semantics") == "sum_of_members"
    most = p.sum_of_members.max_member_weight if by_members else 0
    return ProfileSchema(p.preamble.id, layout, p.max_group_size, by_members, most, p.weights_disallowed)


def _table(
    t: p4i.Table,
    layout: TableLayout,
    source: Table,
    actions: dict[int, p4i.Action],
    profile: ProfileSchema | None,
) -> TableSchema:
    name = t.preamble.name
    if len(t.match_fields) != len(layout.key):
        raise _bad(f"P4Info and device config differ in the key of table {name}")
    for f, slot in zip(t.match_fields, layout.key, strict=True):
        kind = KINDS.get(f.match_type)
        if kind is None or slot.match not in _IN_JSON.get(kind, (kind,)) or f.bitwidth not in (0, slot.width):
            raise _bad(f"P4Info and device config differ in match field {f.name} of table {name}")
    by_name = {a.name: a for a in layout.actions}
    bound: dict[int, ActionSchema] = {}
    for ref in t.action_refs:
        action = actions.get(ref.id)
        if action is None or action.preamble.name not in by_name:
            raise _bad(f"P4Info and device config differ in the actions of table {name}")
        place = by_name[action.preamble.name]
        if [p.bitwidth for p in action.params] != [p.width for p in place.params]:
            raise _bad(f"P4Info and device config differ in the parameters of action {action.preamble.name}")
        ids = tuple(p.id for p in action.params)
        bound[ref.id] = ActionSchema(ref.id, action.preamble.name, place, ids, ref.scope)
    meter = next((r for r in t.direct_resource_ids if r >> 24 == p4i.P4Ids.DIRECT_METER), 0)
    counter = next((r for r in t.direct_resource_ids if r >> 24 == p4i.P4Ids.DIRECT_COUNTER), 0)
    return TableSchema(
        id=t.preamble.id,
        name=name,
        layout=layout,
        source=source,
        fields=tuple(t.match_fields),
        actions=bound,
        by_number={a.layout.number: a for a in bound.values()},
        counter_id=counter,
        const_default=bool(t.const_default_action_id) or layout.default_map is None,
        const_table=t.is_const_table,
        meter_id=meter,
        idle_timeout=t.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL,
        profile=profile,
    )
