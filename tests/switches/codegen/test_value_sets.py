"""Parser value sets, compared with the model, and written by P4Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.ebpf.runtime.value_sets import Ends, ValueSetState, encode_members
from mrclab.switches.p4_model import Between, Exact, Key, Masked
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.handmade import assign, extract, field, if_, number, op, program, state
from tests.support.switch_bench import Bench
from tests.support.switch_kit import Namespace, error_codes, receive, three_ports
from tests.switches.codegen.language import KEY, OUT, PROBLEM, SOME, Code, bench, header, root

pytestmark = pytest.mark.parallel

# -- value sets ------------------------------------------------------------------------------------------

VALUE_SETS = program(
    {"k": (*KEY[:4], ("type", 16), ("c", 9), ("d", 7), ("pad", 128)), "note": (("way", 8),)},
    {"key": "k", "note": "note"},
    [
        state(
            "start", [extract("regular", "key")], [field("key", "type")],
            [("types", "special"), (0x0800, None), (None, "look")],
        ),
        state("special", [extract("regular", "note")]),
        state("look", [], [field("key", "n"), field("key", "c"), field("key", "d")],
              [("triples", "special"), (None, None)]),
    ],
    [OUT, PROBLEM, if_(op("valid", None, header("note")), assign(field("key", "m"), number(9)))],
    ["key", "note"],
    parse_vsets=[
        {"name": "types", "id": 0, "compressed_bitwidth": 16, "max_size": 4},
        {"name": "triples", "id": 1, "compressed_bitwidth": 24, "max_size": 8},
    ],
)  # fmt: skip


@pytest.fixture(scope="module")
def value_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, VALUE_SETS)


def ends(key: Key, widths: tuple[int, ...]) -> tuple[Ends, ...]:
    out = []
    for m, width in zip(key, widths, strict=True):
        match m:
            case Between(low, high):
                out.append(Ends((1 << width) - 1, low, high))
            case Masked(value, mask):
                out.append(Ends(mask, value & mask, value & mask))
            case Exact(value):
                out.append(Ends((1 << width) - 1, value, value))
    return tuple(out)


SMALL = st.integers(0, 6)
FIELD = st.one_of(
    SMALL.map(Exact),
    st.tuples(SMALL, st.sampled_from([0, 1, 6, 7])).map(lambda p: Masked(p[0], p[1])),
    st.tuples(SMALL, SMALL).map(lambda p: Between(min(p), max(p))),
)


@root
@SOME
@given(
    types=st.lists(st.integers(0x0800, 0x0803), max_size=4, unique=True),
    triples=st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=8, unique=True),
    frames=st.lists(st.tuples(st.integers(0x0800, 0x0804), SMALL, SMALL, SMALL), min_size=1, max_size=8),
)
def test_value_sets_choose_the_next_state(
    value_sets: Bench,
    types: list[int],
    triples: list[tuple[Exact | Masked | Between, ...]],
    frames: list[tuple[int, int, int, int]],
) -> None:
    held = {"types": [(Exact(t),) for t in types], "triples": triples}
    for name, widths in (("types", (16,)), ("triples", (8, 9, 7))):
        value_sets.model.value_sets[name] = held[name]
        members = tuple(ends(m, widths) for m in held[name])
        value_sets.do(lambda tx, n=name, m=members: value_sets.running.value_sets[n].set(m, tx))  # type: ignore[misc]
    for kind, n, c, d in frames:
        fixed = bytes([0, n, 0, 0]) + kind.to_bytes(2, "big") + (c << 7 | d).to_bytes(2, "big")
        value_sets.compare(fixed + bytes(16) + b"\x55rest")


def test_an_empty_value_set_is_no_value_and_a_large_one_is_refused() -> None:
    plan = translate(read_program(VALUE_SETS)).plan
    assert encode_members(plan.value_sets["types"], ()) is None
    assert ValueSetState(plan.value_sets["types"]).members == ()
    large = VALUE_SETS.replace('"max_size": 8', '"max_size": 257')
    with pytest.raises(UnsupportedError, match="parser value set triples of more than 256 members"):
        translate(read_program(large))


INFO = text_format.Parse(
    """
    pkg_info { arch: "v1model" }
    value_sets {
      preamble { id: 0x03000001 name: "types" }
      match { id: 1 bitwidth: 16 match_type: EXACT }
      size: 4
    }
    value_sets {
      preamble { id: 0x03000002 name: "triples" }
      match { id: 1 name: "n" bitwidth: 8 match_type: TERNARY }
      match { id: 2 name: "c" bitwidth: 9 match_type: RANGE }
      match { id: 3 name: "d" bitwidth: 7 match_type: LPM }
      size: 8
    }
    """,
    p4i.P4Info(),
)


def members(number: int, *matches: str) -> p4r.Entity:
    """Return a value set. Its members are given in the text form of their matches."""
    out = p4r.Entity()
    out.value_set_entry.value_set_id = number
    for text in matches:
        text_format.Parse(text, out.value_set_entry.members.add())
    return out


def modified(entity: p4r.Entity, kind: p4r.Update.Type.ValueType = p4r.Update.MODIFY) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)


def exact(value: str) -> str:
    return f'match {{ field_id: 1 exact {{ value: "{value}" }} }}'


@root
def test_value_sets_by_p4runtime(namespace: Namespace, tmp_path: Path) -> None:
    types, triples = 0x03000001, 0x03000002
    ternary = 'match { field_id: 1 ternary { value: "\\x02" mask: "\\x06" } }'
    span = 'match { field_id: 2 range { low: "\\x00" high: "\\x03" } }'
    prefix = 'match { field_id: 3 lpm { value: "\\x40" prefix_len: 1 } }'
    with three_ports("ebpf", namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(VALUE_SETS.encode(), INFO)
        out, back = namespace.packet_socket("h1"), namespace.packet_socket("h2")

        def taken(kind: int, n: int = 0, c: int = 0, d: int = 0) -> bool:
            fixed = bytes([0, n, 0, 0]) + kind.to_bytes(2, "big") + (c << 7 | d).to_bytes(2, "big")
            out.send(fixed + bytes(56))
            (answer,) = receive(back, 1)
            return answer[3] == 9

        assert client.read(members(0)) == [members(types), members(triples)]
        assert not taken(0x0801)
        two = members(types, exact("\\x08\\x01"), exact("\\x08\\x02"))
        mixed = members(triples, f"{ternary} {span}", prefix)
        client.write(modified(two), modified(mixed))
        assert client.read(members(types)) == [two]
        assert client.read(members(0)) == [two, mixed]
        assert taken(0x0801)
        assert not taken(0x0800)
        assert taken(0x0900, n=3, c=2)
        assert not taken(0x0900, n=3, c=4)
        assert taken(0x0900, n=9, c=400, d=0x41)
        wrong = [
            (modified(two, p4r.Update.INSERT), Code.INVALID_ARGUMENT),
            (modified(two, p4r.Update.DELETE), Code.INVALID_ARGUMENT),
            (modified(members(3)), Code.NOT_FOUND),
            (modified(members(types, exact("\\x01"), exact("\\x01"))), Code.ALREADY_EXISTS),
            (modified(members(types, *(exact(f"\\x0{i}") for i in range(5)))), Code.RESOURCE_EXHAUSTED),
            (modified(members(types, exact("\\x01\\x00\\x00"))), Code.OUT_OF_RANGE),
            (modified(members(types, "")), Code.INVALID_ARGUMENT),
            (modified(members(triples, exact("\\x01"))), Code.INVALID_ARGUMENT),
            (
                modified(members(triples, 'match { field_id: 1 ternary { value: "\\x03" mask: "\\x06" } }')),
                Code.INVALID_ARGUMENT,
            ),
        ]
        with pytest.raises(grpc.RpcError) as caught:
            client.write(*(update for update, _ in wrong))
        assert error_codes(caught.value) == [code for _, code in wrong]
        assert client.read(members(0)) == [two, mixed]
        client.write(modified(members(types)))
        assert client.read(members(types)) == [members(types)]
        assert not taken(0x0801)
        for s in (out, back):
            s.close()
