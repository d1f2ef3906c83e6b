"""P4Runtime's rules for byte strings, elections and entries. These tests need no kernel."""

from __future__ import annotations

import pytest
from finsy.proto import p4d, p4i, p4r, p4t
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.ebpf.p4runtime.arbitration import Arbiter, Client
from mrclab.switches.ebpf.p4runtime.schema import Schema, TableSchema, bind
from mrclab.switches.ebpf.p4runtime.server import wait_of
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError, batch_status
from mrclab.switches.ebpf.p4runtime.values import DataTypes, decode, decode_signed, encode, encode_signed
from mrclab.switches.ebpf.plan import Compiled, SourceMap
from mrclab.switches.ebpf.runtime.entries import Entry, ExistsError, NotThereError, TableFullError
from mrclab.switches.ebpf.runtime.table_state import TableState
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.spec import WAIT_KEY
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import DATA, JSON, P4INFO, Names, read_p4info


@given(width=st.integers(1, 128), data=st.data())
def test_byte_strings_are_canonical_and_read_back(width: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, (1 << width) - 1))
    text = encode(value)
    assert decode(text, width, "x") == value
    assert decode(bytes(3) + text, width, "x") == value
    assert len(text) == 1 or text[0] != 0


def test_byte_strings_that_do_not_fit() -> None:
    for data, code in ((b"", Code.OUT_OF_RANGE), (b"\x02\x00", Code.OUT_OF_RANGE)):
        with pytest.raises(P4RuntimeError) as caught:
            decode(data, 9, "x")
        assert caught.value.code is code


@given(width=st.integers(1, 128), data=st.data())
def test_signed_byte_strings_are_canonical_and_read_back(width: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(-(1 << width - 1), (1 << width - 1) - 1))
    bits = number & (1 << width) - 1
    text = encode_signed(bits, width)
    assert int.from_bytes(text, "big", signed=True) == number
    assert decode_signed(text, width, "x") == bits
    assert decode_signed((b"\xff" if number < 0 else b"\0") * 3 + text, width, "x") == bits
    assert len(text) == 1 or int.from_bytes(text[1:], "big", signed=True) != number


@pytest.mark.parametrize(
    ("text", "width"), [(b"", 16), (b"\x00\x9d", 8), (b"\x8d\x1d", 12), (b"\x01\x63", 8)]
)
def test_signed_byte_strings_that_do_not_fit(text: bytes, width: int) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        decode_signed(text, width, "x")
    assert caught.value.code is Code.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("spec", "value", "data"),
    [
        ("bitstring { bit { bitwidth: 16 } }", 0xFFFF, 'bitstring: "\\xff\\xff"'),
        ("bitstring { int { bitwidth: 16 } }", 0xFFFF, 'bitstring: "\\xff"'),
        ("bitstring { int { bitwidth: 16 } }", 0xFF, 'bitstring: "\\x00\\xff"'),
        ("bool { }", 1, "bool: true"),
        ("serializable_enum { name: 'kind_t' }", 7, 'enum_value: "\\x07"'),
        ("enum { name: 'state_t' }", 1, 'enum: "running"'),
        ("error { }", 1, 'error: "PacketTooShort"'),
        ("new_type { name: 'age_t' }", 0xFFFE, 'bitstring: "\\xfe"'),
    ],
)
def test_data_has_the_form_of_its_type(spec: str, value: int, data: str) -> None:
    info = p4t.P4TypeInfo()
    info.enums["state_t"].members.add(name="idle")
    info.enums["state_t"].members.add(name="running")
    info.new_types["age_t"].original_type.bitstring.int.bitwidth = 16
    types, kind = DataTypes(info, {0: "NoError", 1: "PacketTooShort"}), p4t.P4DataTypeSpec()
    text_format.Parse(spec, kind)
    out = p4d.P4Data()
    types.write(kind, iter((value,)), out)
    assert out == text_format.Parse(data, p4d.P4Data())
    if out.WhichOneof("data") not in ("enum", "error"):  # no register has such a type
        assert types.read(kind, out, 16, "x") == value
    with pytest.raises(P4RuntimeError) as caught:
        types.read(kind, p4d.P4Data(varbit=p4d.P4Varbit()), 16, "x")
    assert caught.value.code is Code.INVALID_ARGUMENT


class Heard:
    """A client of an arbiter. It keeps the arbiter's messages."""

    def __init__(self) -> None:
        self.messages: list[p4r.StreamMessageResponse] = []
        self.client = Client(self.messages.append)

    def status(self) -> Code:
        code = self.messages[-1].arbitration.status.code
        return next(c for c in Code if c.value[0] == code)


def bid(low: int, role: str = "") -> p4r.MasterArbitrationUpdate:
    message = p4r.MasterArbitrationUpdate(device_id=1)
    message.election_id.low = low
    if role:
        message.role.name = role
    return message


def test_the_highest_election_id_is_primary() -> None:
    arbiter, a, b = Arbiter(1), Heard(), Heard()
    arbiter.update(a.client, bid(5))
    assert a.status() is Code.OK
    arbiter.update(b.client, bid(3))
    assert (a.status(), b.status(), len(a.messages)) == (Code.OK, Code.ALREADY_EXISTS, 1)
    assert b.messages[-1].arbitration.election_id.low == 5
    arbiter.update(b.client, bid(9))
    assert (a.status(), b.status()) == (Code.ALREADY_EXISTS, Code.OK)
    arbiter.check("", p4r.Uint128(low=9))
    for low in (5, 3, 0, 10):
        with pytest.raises(P4RuntimeError) as caught:
            arbiter.check("", p4r.Uint128(low=low))
        assert caught.value.code is Code.PERMISSION_DENIED


def test_when_the_primary_leaves_nobody_is_until_someone_reaches_its_id() -> None:
    arbiter, a, b = Arbiter(1), Heard(), Heard()
    arbiter.update(a.client, bid(5))
    arbiter.update(b.client, bid(3))
    arbiter.leave(a.client)
    assert b.status() is Code.NOT_FOUND
    with pytest.raises(P4RuntimeError):
        arbiter.check("", p4r.Uint128(low=3))
    arbiter.update(b.client, bid(5))
    assert b.status() is Code.OK


def test_an_election_id_belongs_to_one_client_and_roles_are_apart() -> None:
    arbiter, a, b = Arbiter(1), Heard(), Heard()
    arbiter.update(a.client, bid(5))
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.update(b.client, bid(5))
    assert caught.value.code is Code.INVALID_ARGUMENT
    arbiter.update(b.client, bid(5, "other"))
    assert (a.status(), b.status()) == (Code.OK, Code.OK)
    high = bid(0)
    high.election_id.high = 1
    arbiter.update(a.client, high)  # 2^64 is more than any low half
    arbiter.check("", p4r.Uint128(high=1))


def test_a_primary_that_bids_lower_steps_down() -> None:
    arbiter, a = Arbiter(1), Heard()
    arbiter.update(a.client, bid(5))
    arbiter.update(a.client, bid(2))
    assert a.status() is Code.NOT_FOUND


def test_a_named_role_is_forgotten_with_its_last_client() -> None:
    """The server must not keep all names that clients have ever used."""
    arbiter = Arbiter(1)
    for number in range(100):
        stranger, bidding = Heard(), bid(1)
        bidding.role.name = f"role {number}"
        arbiter.update(stranger.client, bidding)
        assert stranger.status() is Code.OK
        arbiter.leave(stranger.client)
    with pytest.raises(P4RuntimeError, match="no role role 7"):
        arbiter.check("role 7", p4r.Uint128(low=1))
    assert arbiter._roles == {}
    keeper = Heard()
    arbiter.update(keeper.client, bid(5))
    arbiter.leave(keeper.client)
    arbiter.update(keeper.client, bid(4))
    assert keeper.status() is Code.NOT_FOUND  # the highest election id of the role without a name is kept


def entry_of(table: TableSchema, message: p4r.TableEntry) -> Entry:
    action = table.read_action(message.action, default=False)
    return Entry(*table.read_ident(message), action, metadata=message.metadata)


def schema_of(json: bytes, info: p4i.P4Info) -> Schema:
    program = read_program(json)
    return bind(info, Compiled(program, translate(program).plan, b"", SourceMap()))


@pytest.fixture(scope="module")
def match() -> tuple[Schema, Names]:
    info = read_p4info(DATA / "match.p4info.txtpb")
    return schema_of((DATA / "match.json").read_bytes(), info), Names(info)


def test_entries_read_back_as_written(match: tuple[Schema, Names]) -> None:
    schema, names = match
    entries = [
        names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 300}, "I.wide", 1 << 63, 7),
        names.entry("I.prefix", {"hdr.key.e": 1, "hdr.key.c": (0xFF000000, 8)}, "I.note"),
        names.entry("I.prefix", {"hdr.key.e": 1}, "I.note"),
        names.entry(
            "I.scan", {"hdr.key.b": (0x100, "&", 0xFF00), "hdr.key.a": 2}, "I.mark", 1, 255, priority=7
        ),
        names.entry("I.span", {"hdr.key.b": (5, "..", 9), "hdr.key.a": ("?", 3)}, "I.note", priority=1),
        names.entry("I.span", {}, "I.note", priority=2),
    ]
    for e in entries:
        e.metadata = b"tag"
        table = schema.table(e.table_id)
        assert table.write_entry(entry_of(table, e)) == e


def bad_entries(names: Names) -> list[tuple[p4r.TableEntry, Code]]:
    note = "I.note"
    missing = names.entry("I.pair", {"hdr.key.a": 5}, note)
    wide = names.entry("I.pair", {"hdr.key.a": 256, "hdr.key.d": 1}, note)
    wrong_kind = names.entry("I.pair", {"hdr.key.a": (5, 3), "hdr.key.d": 1}, note)
    twice = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, note)
    twice.match.append(twice.match[0])
    unknown = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, note)
    unknown.match[0].field_id = 77
    priority = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, note, priority=3)
    no_priority = names.entry("I.scan", {"hdr.key.a": 5}, note)
    outside = names.entry("I.scan", {"hdr.key.b": (3, "&", 1), "hdr.key.a": 5}, note, priority=1)
    nothing = names.entry("I.scan", {"hdr.key.b": (0, "&", 0), "hdr.key.a": 5}, note, priority=1)
    zero_prefix = names.entry("I.prefix", {"hdr.key.e": 1, "hdr.key.c": (0, 0)}, note)
    long_prefix = names.entry("I.prefix", {"hdr.key.e": 1, "hdr.key.c": (0, 33)}, note)
    host_bits = names.entry("I.prefix", {"hdr.key.e": 1, "hdr.key.c": (0xFF000001, 8)}, note)
    reverse = names.entry("I.span", {"hdr.key.b": (9, "..", 5)}, note, priority=1)
    everything = names.entry("I.span", {"hdr.key.b": (0, "..", 0xFFFF)}, note, priority=1)
    other_action = names.entry("I.prefix", {"hdr.key.e": 1}, "I.leave")
    default_only = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, "NoAction")
    no_action = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1})
    no_param = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, "I.mark", 1, 2)
    del no_param.action.action.params[1]
    big_param = names.entry("I.pair", {"hdr.key.a": 5, "hdr.key.d": 1}, "I.mark", 1, 256)
    bad, far = Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE
    return [
        (missing, bad), (wide, far), (wrong_kind, bad), (twice, bad), (unknown, bad), (priority, bad),
        (no_priority, bad), (outside, bad), (nothing, bad), (zero_prefix, bad), (long_prefix, bad),
        (host_bits, bad), (reverse, bad), (everything, bad), (other_action, bad), (no_action, bad),
        (default_only, Code.PERMISSION_DENIED), (no_param, bad), (big_param, far),
    ]  # fmt: skip


def test_entries_that_break_a_rule(match: tuple[Schema, Names]) -> None:
    schema, names = match
    for e, code in bad_entries(names):
        with pytest.raises(P4RuntimeError) as caught:
            entry_of(schema.table(e.table_id), e)
        assert caught.value.code is code, e
        assert "\n" not in caught.value.message


@pytest.mark.slow
def test_a_p4info_of_another_program_is_refused() -> None:
    with pytest.raises(P4RuntimeError, match="differ"):
        schema_of(JSON.read_bytes(), read_p4info(DATA / "match.p4info.txtpb"))
    info = read_p4info(P4INFO)
    info.tables[0].match_fields[0].bitwidth = 8
    with pytest.raises(P4RuntimeError, match=r"match field port of table MrcIngress\.ingress_fault\.fault"):
        schema_of(JSON.read_bytes(), info)


@pytest.mark.parametrize(("bits", "form"), [(0, "a string"), (32, "32 bits")])
def test_translated_values_are_refused_by_name(bits: int, form: str) -> None:
    info = read_p4info(DATA / "match.p4info.txtpb")
    new = info.type_info.new_types["port_id_t"].translated_type
    new.uri = "port"
    if bits:
        new.sdn_bitwidth = bits
    else:
        new.sdn_string.SetInParent()
    field = info.tables[0].match_fields[0]
    width, field.type_name.name = field.bitwidth, "port_id_t"
    json = (DATA / "match.json").read_bytes()
    schema_of(json, info)  # a translation to as many bits changes no number
    field.bitwidth = bits
    text = rf"^match field {field.name} of table .*: type port_id_t is translated to {form} "
    with pytest.raises(P4RuntimeError, match=text):
        schema_of(json, info)
    field.bitwidth = width
    param = next(a.params[0] for a in info.actions if a.params)
    param.bitwidth, param.type_name.name = bits, "port_id_t"
    with pytest.raises(P4RuntimeError, match=rf"^parameter {param.name} of .* to {form} "):
        schema_of(json, info)


def test_a_packet_in_with_a_translated_port_is_refused_by_name() -> None:
    json = (DATA / "again.json").read_bytes()
    program = read_program(json)
    kind = next(h.type for h in program.headers.values() if not h.metadata)
    info = read_p4info(DATA / "again.p4info.txtpb")
    header = info.controller_packet_metadata.add()
    header.preamble.name = "packet_in"
    for number, field in enumerate(kind.fields, 1):
        header.metadata.add(id=number, name=field.name, bitwidth=field.width)
    schema_of(json, info)
    info.type_info.new_types["port_id_t"].translated_type.sdn_bitwidth = 32
    header.metadata[0].type_name.name, header.metadata[0].bitwidth = "port_id_t", 32
    with pytest.raises(P4RuntimeError, match=r"^metadata .* of packet_in: type port_id_t is translated "):
        schema_of(json, info)


def state_of(match: tuple[Schema, Names], name: str) -> TableState:
    table = match[0].tables[match[1].tables[name].preamble.id]
    return TableState(table.source, table.layout)


def test_a_table_changes_as_planned_and_back(match: tuple[Schema, Names]) -> None:
    schema, names = match
    state = state_of(match, "I.span")
    table = schema.table(names.tables["I.span"].preamble.id)

    def entry(i: int) -> p4r.TableEntry:
        return names.entry("I.span", {"hdr.key.b": (i, "..", i + 1)}, "I.note", priority=1)

    tx = Transaction()
    for i in range(20):
        state.insert(entry_of(table, entry(i)), tx)
    assert len({e.cell for e in state.entries.values()}) == 20
    with pytest.raises(TableFullError):
        state.insert(entry_of(table, entry(20)), tx)
    first = entry_of(table, entry(0))
    with pytest.raises(ExistsError):
        state.insert(first, tx)
    ident = (first.match, first.priority)
    before = dict(state.entries)
    away = Transaction()
    state.delete(ident, away)
    assert ident not in state.entries
    away.undo()
    assert state.entries == before
    (change,) = away.changes
    assert change.current() != change.value
    state.delete(ident, tx)
    with pytest.raises(NotThereError):
        state.modify(first, tx)
    with pytest.raises(NotThereError):
        state.delete(ident, tx)
    back = Transaction()
    state.insert(entry_of(table, entry(20)), back)
    back.undo()
    assert len(state.entries) == 19
    tx.undo()
    assert state.entries == {}


def test_const_entries_keep_the_order_of_the_program(match: tuple[Schema, Names]) -> None:
    state = state_of(match, "I.fixed")
    tx = Transaction()
    state.setup(tx)
    assert len(tx.changes) >= 3
    ordered = sorted(state.entries.values(), key=lambda e: -e.priority)
    assert [e.match[0] for e in ordered] == [(0x0100, 0xFF00), (0, 0x8000), (0, 0)]


def test_a_failed_batch_has_one_error_per_update() -> None:
    from finsy.proto import rpc_status

    data = batch_status([None, P4RuntimeError(Code.NOT_FOUND, "gone")])
    status = rpc_status.Status.FromString(data)
    errors = []
    for detail in status.details:
        error = p4r.Error()
        assert detail.Unpack(error)
        errors.append((error.canonical_code, error.message))
    assert status.code == 2
    assert errors == [(0, ""), (5, "gone")]


def test_the_wait_of_a_write_is_a_number_within_its_bound() -> None:
    assert wait_of(()) is None
    assert wait_of(((WAIT_KEY, "1500000"),)) == 1_500_000
    for text in ("-1", "soon", "10000001", ""):
        with pytest.raises(P4RuntimeError) as refused:
            wait_of(((WAIT_KEY, text),))
        assert refused.value.code is Code.INVALID_ARGUMENT
