"""Action profiles and selectors: members, groups, one-shots, and which member a frame gets."""

from __future__ import annotations

import random
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st

from mrclab.switches.ebpf.plan import ActionLayout, ProfileLayout
from mrclab.switches.ebpf.runtime.entries import Action, Entry, NotThereError, TableFullError
from mrclab.switches.ebpf.runtime.profiles import InUseError, ProfileState, Share
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.hashes import HASHES
from mrclab.switches.p4_model import Exact, Masked, Prefix, Profile, Rule
from tests.support.selector_switch import Switch, change, put_in
from tests.support.switch_bench import EXAMPLES, Bench, bench_of
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Namespace,
    compare_frames,
    delete,
    error_codes,
    insert,
    modify,
    read_p4info,
    receive,
    three_ports,
)

pytestmark = pytest.mark.parallel

Code = grpc.StatusCode

# -- hashes ------------------------------------------------------------------------------------------------


def test_hashes_have_the_check_values_of_their_catalogue() -> None:
    """The check values for "123456789" are from the CRC catalogue: ARC, ISO-HDLC, IBM-3740."""
    text = b"123456789"
    assert HASHES["crc16"](text) == HASHES["crc16_custom"](text) == 0xBB3D
    assert HASHES["crc32"](text) == HASHES["crc32_custom"](text) == 0xCBF43926 == zlib.crc32(text)
    assert HASHES["crcCCITT"](text) == 0x29B1
    assert HASHES["identity"](text) == int.from_bytes(text[:8], "big")
    assert HASHES["xor16"](b"\x12\x34\xff") == 0x1234 ^ 0xFF00
    # RFC 1071, section 3: the sum of these bytes is ddf2.
    assert HASHES["csum16"](bytes.fromhex("0001f203f4f5f6f7")) == ~0xDDF2 & 0xFFFF


# -- the server's view -------------------------------------------------------------------------------------

MARK = ActionLayout("mark", 0, 1, ())
LAYOUT = ProfileLayout("selector", 0, 1, 8, 16, 8, (MARK,))


def action(number: int) -> Action:
    return Action(MARK, (number,))


def numbers(state: ProfileState, group: int) -> list[int]:
    return [m.action.args[0] for m in state.places(state.group(group))]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> ProfileState:
    monkeypatch.setattr(
        "mrclab.switches.ebpf.runtime.profiles.encode_action", lambda size, action, cell: bytes(size)
    )
    return ProfileState(LAYOUT, lambda port: port not in DOWN)


DOWN: set[int] = set()


def test_places_go_by_the_handles_that_bmv2_gives(state: ProfileState) -> None:
    tx = Transaction()
    for member in (7, 3, 5):  # they get the handles 0, 1, 2
        state.insert_member(member, action(member), tx)
    state.insert_group(1, {3: Share(1), 5: Share(1), 7: Share(1)}, 0, tx)
    assert numbers(state, 1) == [7, 3, 5]
    # In the order of ids: member 5's second place gets handle 3, member 7's other places get 4 and 5.
    state.modify_group(1, {7: Share(3), 5: Share(2)}, tx)
    assert numbers(state, 1) == [7, 5, 5, 7, 7]
    state.delete_member(3, tx)  # this frees handle 1 for the third place of 5
    state.modify_group(1, {7: Share(3), 5: Share(3)}, tx)
    assert numbers(state, 1) == [7, 5, 5, 5, 7, 7]
    # The new group needs only one place of each member. The handles of the first group stay.
    state.insert_group(2, {5: Share(1), 7: Share(1)}, 0, tx)
    state.delete_group(1, tx)  # now the handles 1, 3, 4 and 5 are free again
    state.insert_member(9, action(9), tx)
    state.modify_group(2, {5: Share(1), 7: Share(1), 9: Share(2)}, tx)
    assert numbers(state, 2) == [7, 9, 5, 9]


def test_what_is_used_stays_and_what_is_undone_was_not(state: ProfileState) -> None:
    tx = Transaction()
    for member in (1, 2):
        state.insert_member(member, action(member), tx)
    state.insert_group(1, {1: Share(2)}, 0, tx)
    with pytest.raises(InUseError):
        state.delete_member(1, tx)
    with pytest.raises(NotThereError):
        state.modify_group(1, {4: Share(1)}, tx)
    reference = state.refer_to_group(1)
    state.count(reference, 1, tx)
    with pytest.raises(InUseError):
        state.delete_group(1, tx)
    later = Transaction()
    state.modify_group(1, {1: Share(1), 2: Share(4)}, later)
    state.insert_member(3, action(3), later)
    later.undo()
    assert numbers(state, 1) == [1, 1]
    assert set(state.members) == {1, 2}
    for member in range(3, 9):
        state.insert_member(member, action(member), tx)
    with pytest.raises(TableFullError):
        state.insert_member(9, action(9), tx)
    tx.undo()
    assert (state.members, state.groups) == ({}, {})
    state.insert_member(1, action(1), tx)
    assert state.members[1].handles == [0]


def test_a_member_whose_port_has_no_link_is_left_out(state: ProfileState) -> None:
    tx = Transaction()
    for member in (1, 2, 3):
        state.insert_member(member, action(member), tx)
    state.insert_group(1, {1: Share(1, 1), 2: Share(2, 2), 3: Share(1)}, 0, tx)
    DOWN.add(2)
    try:
        change = Transaction()
        state.link_changed(2, change)
        assert len(change.changes) == 1
        assert numbers(state, 1) == [1, 3]
        state.link_changed(4, change)  # no group watches this port
        assert len(change.changes) == 1
    finally:
        DOWN.discard(2)
    assert numbers(state, 1) == [1, 2, 3, 2]


# -- in the kernel -----------------------------------------------------------------------------------------

WIDTHS = {"kind": 8, "a": 16, "b": 32, "c": 9, "d": 7, "e": 64, "result": 32, "mark": 8}
MORE, ODD = (32, 16), (5, 128, 3)


def frame_of(kind: int, a: int, b: int, c: int, d: int, e: int, more: int, odd: int) -> bytes:
    number = 0
    for value, width in zip((kind, a, b, c, d, e, 0, 0), WIDTHS.values(), strict=True):
        number = number << width | value & ((1 << width) - 1)
    out = number.to_bytes(sum(WIDTHS.values()) // 8, "big")
    if kind in (1, 3):
        out += more.to_bytes(6, "big")
    if kind in (2, 3):
        out += odd.to_bytes(17, "big")
    return out + b"payload" * 3


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield from bench_of(DATA / "select.json")


def set_up(bench: Bench, members: dict[int, int], groups: dict[int, dict[int, int]]) -> None:
    """Write members (id -> kind of action) and groups (id -> member -> weight) into all three selectors."""
    for name, profile in bench.running.profiles.items():
        for table in bench.tables.values():
            if table.layout.profile == name:
                for ident in list(table.entries):
                    bench.do(lambda tx, t=table, i=ident: t.delete(i, tx))  # type: ignore[misc]
                bench.model.rules[table.layout.name] = []
        profile.__init__(profile.layout)  # type: ignore[misc]
        model = bench.model.profiles[name] = Profile()
        layouts = {a.name: a for a in profile.layout.actions}
        for member, what in members.items():
            choice, args = [("I.mark", (member << 8,)), ("I.note", ())][what]
            does = Action(layouts[choice], args)
            bench.do(lambda tx, p=profile, m=member, a=does: p.insert_member(m, a, tx))  # type: ignore[misc]
            model.members[member] = (choice, args)
        if profile.layout.group_map is not None:
            for group, weights in groups.items():
                shares = {m: Share(w) for m, w in weights.items()}
                bench.do(lambda tx, p=profile, g=group, s=shares: p.insert_group(g, s, 0, tx))  # type: ignore[misc]
                places = profile.places(profile.group(group))
                model.groups[group] = [
                    next(i for i, m in profile.members.items() if m is place) for place in places
                ]


def put(bench: Bench, table: str, rule: Rule) -> None:
    state = bench.tables[table]
    profile = bench.running.profiles[str(state.layout.profile)]
    reference = (
        profile.refer_to_member(rule.member)
        if rule.member is not None
        else profile.refer_to_group(rule.group or 0)
    )
    match = []
    for slot, m in zip(state.layout.key, rule.key, strict=True):
        full = (1 << slot.width) - 1
        match.append(
            (m.value, full ^ (full >> m.length) if isinstance(m, Prefix) else getattr(m, "mask", full))
        )
    bench.do(lambda tx: state.insert(Entry(tuple(match), rule.priority, reference), tx))
    bench.model.rules[table] = [*bench.model.rules.get(table, []), rule]


MEMBERS = st.dictionaries(st.integers(1, 9), st.integers(0, 1), min_size=1, max_size=6)


@pytest.mark.slow
@pytest.mark.root
@EXAMPLES
@given(data=st.data())
def test_the_member_is_the_one_that_the_model_chooses(bench: Bench, data: st.DataObject) -> None:
    members = data.draw(MEMBERS)
    shares = st.dictionaries(st.sampled_from(sorted(members)), st.integers(1, 3), max_size=4)
    groups = data.draw(st.dictionaries(st.integers(1, 3), shares, max_size=3))
    set_up(bench, members, groups)
    target = st.sampled_from([("member", m) for m in members] + [("group", g) for g in groups])
    plain = st.sampled_from([("member", m) for m in members])
    for table, keys, targets in (
        ("I.direct", [(Exact(0),), (Exact(1),)], plain),
        ("I.pick", [(Prefix(0, 0),), (Prefix(1 << 31, 1),)], target),
        ("I.again", [(Exact(0),), (Exact(1),)], target),
        ("I.same", [(Masked(0, 0),)], target),
    ):
        for i, key in enumerate(keys):
            if data.draw(st.booleans()):
                what, number = data.draw(targets)
                put(bench, table, Rule(key, priority=i + 1 if table == "I.same" else 0, **{what: number}))
    fields = st.tuples(
        st.integers(0, 3), st.integers(0, 3) | st.integers(0, 65535),
        st.sampled_from([0, 1 << 31]), st.integers(0, 2), st.integers(0, 127),
        st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 136) - 1),
    )  # fmt: skip
    for values in data.draw(st.lists(fields, min_size=1, max_size=5)):
        assert bench.compare(frame_of(*values))


# -- over P4Runtime ----------------------------------------------------------------------------------------


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports(request.param, namespace, tmp_path) as client:
        yield Switch(client, read_p4info(DATA / "select.p4info.txtpb"), (DATA / "select.json").read_bytes())


def frames(rng: random.Random, count: int) -> list[bytes]:
    return [
        frame_of(
            rng.randrange(4), rng.randrange(2), rng.getrandbits(32), rng.randrange(2), rng.getrandbits(7),
            rng.getrandbits(64), rng.getrandbits(48), rng.getrandbits(136),
        )
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.root
def test_groups_choose_as_bmv2_does(switch: Switch, namespace: Namespace) -> None:
    """The test sends frames, changes members, weights and groups, and sends frames again."""
    s, rng = switch, random.Random(3)
    for profile in ("I.by_crc16", "I.by_crc32", "I.by_identity"):
        # The handles: member 7 has 0, member 3 has 1, member 5 has 2.
        for number in (7, 3, 5):
            s.client.write(put_in(s.member(profile, number, "I.mark", number)))
        s.client.write(put_in(s.group(profile, 1, {3: 1, 5: 2, 7: 3}, 16 if profile == "I.by_crc16" else 0)))
        s.model.profiles[profile].groups[1] = [7, 3, 5, 5, 7, 7]
    s.client.write(put_in(s.member("I.profile", 1, "I.note")))
    rules = {
        "I.direct": ({"hdr.key.a": 0}, Rule((Exact(0),), member=1)),
        "I.pick": ({}, Rule((Prefix(0, 0),), group=1)),
        "I.again": ({"hdr.key.c": 1}, Rule((Exact(1),), group=1)),
    }
    for table, (match, rule) in rules.items():
        to = {"member": rule.member} if rule.group is None else {"group": rule.group}
        s.client.write(insert(s.entry(table, match, **to)))
        s.model.rules[table] = [rule]
    compare_frames(namespace, s.model, frames(rng, 60))
    # A member is withdrawn, and another one gets its handle.
    for profile in ("I.by_crc16", "I.by_crc32"):
        size = 16 if profile == "I.by_crc16" else 0
        s.client.write(change(s.group(profile, 1, {5: 2, 7: 3}, size)))
        gone = p4r.Update(type=p4r.Update.DELETE, entity=s.member(profile, 3, "I.mark", 3))
        s.client.write(gone)
        s.client.write(put_in(s.member(profile, 4, "I.mark", 44)))
        s.client.write(change(s.group(profile, 1, {4: 2, 5: 2, 7: 3}, size)))
        s.client.write(
            change(s.member(profile, 5, "I.wide" if size else "I.note", *((9, 3) if size else ())))
        )
        s.model.profiles[profile].groups[1] = [7, 4, 5, 5, 7, 7, 4]
    compare_frames(namespace, s.model, frames(rng, 60))


@pytest.mark.root
def test_one_shots_choose_as_bmv2_does_and_read_back(switch: Switch, namespace: Namespace) -> None:
    s, rng = switch, random.Random(4)
    first = s.one_shot("I.pick", {}, (2, "I.mark", 5), (1, "I.mark", 6), (3, "I.mark", 7))
    second = s.one_shot("I.again", {"hdr.key.c": 1}, (1, "I.mark", 8), (1, "I.mark", 9))
    s.client.write(insert(first))
    s.client.write(insert(second))
    for profile in ("I.by_crc16", "I.by_crc32"):
        s.model.profiles[profile].members = {n: ("I.mark", (n,)) for n in range(5, 13)}
    s.model.profiles["I.by_crc16"].groups[1] = [5, 5, 6, 7, 7, 7]
    s.model.profiles["I.by_crc32"].groups[1] = [8, 9]
    s.model.rules = {
        "I.pick": [Rule((Prefix(0, 0),), group=1)],
        "I.again": [Rule((Exact(1),), group=1)],
    }
    compare_frames(namespace, s.model, frames(rng, 60))
    found = {e.table_entry.table_id: e.table_entry for e in s.client.read(p4r.Entity(table_entry={}))}
    assert (found[first.table_id], found[second.table_id]) == (first, second)
    # The new group is made before the old one is deleted, so the new group gets other handles.
    second = s.one_shot("I.again", {"hdr.key.c": 1}, (3, "I.mark", 10), (1, "I.mark", 11))
    s.client.write(modify(second))
    s.model.profiles["I.by_crc32"].groups[1] = [10, 10, 10, 11]
    compare_frames(namespace, s.model, frames(rng, 40))
    third = s.one_shot("I.again", {"hdr.key.c": 0}, (3, "I.mark", 12))
    s.client.write(insert(third))
    s.client.write(delete(second), delete(third))
    del s.model.rules["I.again"]
    compare_frames(namespace, s.model, frames(rng, 10))


@pytest.fixture
def ebpf(namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        yield Switch(client, read_p4info(DATA / "select.p4info.txtpb"), (DATA / "select.json").read_bytes())


@pytest.mark.root
def test_members_and_groups_break_rules(ebpf: Switch) -> None:
    """Check each update's error code in a batch. Comments name sections of P4Runtime 1.4."""
    s, size = ebpf, "I.by_crc16"
    watch = s.group(size, 5, {1: 1}, 16)
    watch.action_profile_group.members[0].watch_port = b"\x09"
    no_action = s.member(size, 8, "I.note")
    no_action.action_profile_member.ClearField("action")
    zero = s.member(size, 0, "I.note")
    foreign = s.member("I.by_crc32", 2, "I.wide", 1, 1)
    nobody = s.member(size, 3, "I.note")
    nobody.action_profile_member.action_profile_id += 1
    big = s.group(size, 6, {1: 9, 2: 8}, 16)
    double = s.group(size, 6, {1: 1}, 16)
    double.action_profile_group.members.append(double.action_profile_group.members[0])
    gone = p4r.Update.DELETE
    updates = [
        (put_in(s.member(size, 1, "I.mark", 5)), Code.OK),
        (put_in(s.member(size, 2, "I.note")), Code.OK),
        (put_in(s.member(size, 1, "I.mark", 5)), Code.ALREADY_EXISTS),  # section 9.2.1
        (change(s.member(size, 9, "I.mark", 5)), Code.NOT_FOUND),
        (put_in(no_action), Code.INVALID_ARGUMENT),
        (put_in(zero), Code.INVALID_ARGUMENT),
        (put_in(foreign), Code.INVALID_ARGUMENT),
        (put_in(nobody), Code.NOT_FOUND),
        (put_in(s.group(size, 1, {1: 1, 2: 2}, 16)), Code.OK),  # section 9.2.2
        (put_in(s.group(size, 1, {1: 1}, 16)), Code.ALREADY_EXISTS),
        (put_in(s.group(size, 2, {1: 1, 7: 1}, 16)), Code.NOT_FOUND),
        (put_in(s.group(size, 2, {1: 0}, 16)), Code.INVALID_ARGUMENT),
        (put_in(s.group(size, 2, {1: 1}, 17)), Code.INVALID_ARGUMENT),
        (put_in(big), Code.RESOURCE_EXHAUSTED),
        (put_in(double), Code.INVALID_ARGUMENT),
        (put_in(watch), Code.INVALID_ARGUMENT),
        (put_in(s.group("I.profile", 1, {})), Code.INVALID_ARGUMENT),
        (change(s.group(size, 1, {1: 1}, 15)), Code.INVALID_ARGUMENT),
        (change(s.group(size, 4, {1: 1}, 16)), Code.NOT_FOUND),
        (p4r.Update(type=gone, entity=s.member(size, 1, "I.note")), Code.FAILED_PRECONDITION),
        (insert(s.entry("I.pick", {}, group=1)), Code.OK),  # section 9.1.2
        (insert(s.entry("I.pick", {"hdr.key.b": (0, 1)}, group=7)), Code.NOT_FOUND),
        (insert(s.entry("I.pick", {"hdr.key.b": (0, 1)}, member=7)), Code.NOT_FOUND),
        (insert(s.names.entry("I.pick", {"hdr.key.b": (0, 1)}, "I.note")), Code.INVALID_ARGUMENT),
        (insert(s.entry("I.direct", {"hdr.key.a": 1}, group=1)), Code.INVALID_ARGUMENT),
        (insert(s.one_shot("I.pick", {"hdr.key.b": (0, 1)}, (1, "I.mark", 1))), Code.INVALID_ARGUMENT),
        (p4r.Update(type=gone, entity=s.group(size, 1, {}, 0)), Code.FAILED_PRECONDITION),
        (insert(s.one_shot("I.again", {"hdr.key.c": 1}, (1025, "I.mark", 1))), Code.RESOURCE_EXHAUSTED),
        (insert(s.one_shot("I.again", {"hdr.key.c": 1}, (1, "I.mark", 1))), Code.OK),
        (put_in(s.member("I.by_crc32", 1, "I.note")), Code.INVALID_ARGUMENT),  # section 9.2.3
        (delete(s.entry("I.pick", {}, group=1)), Code.OK),
        (p4r.Update(type=gone, entity=s.group(size, 1, {}, 0)), Code.OK),
        (p4r.Update(type=gone, entity=s.member(size, 1, "I.note")), Code.OK),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        s.client.write(*(u for u, _ in updates))
    got = error_codes(caught.value)
    assert [(i, c) for i, (c, (_, want)) in enumerate(zip(got, updates, strict=True)) if c is not want] == []
    members = s.client.read(p4r.Entity(action_profile_member={}))
    assert [m.action_profile_member.member_id for m in members] == [2]
    assert s.client.read(p4r.Entity(action_profile_group={})) == []
    default = p4r.TableEntry(table_id=s.names.tables["I.pick"].preamble.id, is_default_action=True)
    with pytest.raises(grpc.RpcError) as caught:
        s.client.write(modify(default))
    assert error_codes(caught.value) == [Code.PERMISSION_DENIED]


@pytest.mark.root
def test_a_watched_port_that_loses_its_link(ebpf: Switch, namespace: Namespace) -> None:
    s = ebpf
    for number in (1, 2):
        s.client.write(put_in(s.member("I.by_identity", number, "I.mark", number)))
    group = s.group("I.by_identity", 1, {1: 1, 2: 1})
    group.action_profile_group.members[1].watch_port = b"\x03"
    s.client.write(put_in(group))
    s.client.write(insert(s.entry("I.same", {}, priority=1, group=1)))
    s.model.rules = {"I.same": [Rule((Masked(0, 0),), group=1)]}
    odd, even = frame_of(0, 1, 0, 0, 0, 0, 0, 0), frame_of(0, 2, 0, 0, 0, 0, 0, 0)
    groups = s.model.profiles["I.by_identity"].groups
    groups[1] = [1, 2]
    compare_frames(namespace, s.model, [odd, even], ports=(1, 2))
    for link, places in (("down", [1]), ("up", [1, 2])):
        subprocess.run(["ip", "-n", namespace.name, "link", "set", "h3", link], check=True)
        groups[1] = places
        send, hear = (namespace.packet_socket(h) for h in ("h1", "h2"))
        ((_, want),) = s.model.run(1, odd)
        deadline = time.monotonic() + 60
        while True:  # the switch notices the link a moment later
            send.send(odd)
            if receive(hear, 1) == [want]:
                break
            assert time.monotonic() < deadline
            assert receive(hear, 1, 0.01) == []  # no more frames arrive
        for each in (send, hear):
            each.close()
        compare_frames(namespace, s.model, [odd, even], ports=(1, 2))
    (read,) = s.client.read(p4r.Entity(action_profile_group={}))
    assert read == group
