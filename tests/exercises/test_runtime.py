"""Files of exercises, read as values and as P4Runtime updates. These tests need no root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4i, p4r

from mrclab.exercises.runtime import octets, read_p4info, read_runtime, updates
from mrclab.exercises.topology import End, find_topology, read_topology
from mrclab.linux.errors import BadInputError
from tests.support.switch_kit import DATA

HERE = Path(__file__).parent
TUNNEL = HERE / "tunnel"


def info(name: str) -> p4i.P4Info:
    return read_p4info((DATA / f"{name}.p4info.txtpb").read_text())


def test_a_topology_is_read() -> None:
    topology = read_topology(find_topology(TUNNEL))
    assert [h.name for h in topology.hosts] == ["h1", "h2", "h3"]
    assert [(s.name, s.device_id) for s in topology.switches] == [("s1", 0), ("s2", 1)]
    assert topology.ports("s2") == [1, 2, 3]
    slow = topology.links[3]
    assert (slow.a, slow.b, slow.rate_bps, slow.delay_ns) == (End("s1", 2), End("s2", 2), 10_000_000, 0)


def changed(tmp_path: Path, change: Any) -> Path:
    raw = json.loads((TUNNEL / "topology.json").read_text())
    change(raw)
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["links"].append(["h9", "s1-p5"]), "'h9': no such node"),
        (lambda t: t["links"].append(["s1-p1", "s2-p9"]), "port 1 of s1 has two links"),
        (lambda t: t["links"].append(["s1", "s2-p9"]), "'s1' is no end of a link"),
        (lambda t: t["links"].append(["s1-p8", "s2-p8", "soon"]), "'soon' is no latency"),
        (lambda t: t["hosts"]["h1"].update(mac="08:00"), "host h1: '08:00' is no MAC address"),
        (lambda t: t["hosts"]["h1"].update(ip="10.0.0.300"), "host h1"),
        (lambda t: t.pop("links"), "not a topology: KeyError: 'links'"),
        (lambda t: t["switches"].update({"a b": {}}), "'a b' is no name"),
    ],
)
def test_a_bad_topology_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_topology(changed(tmp_path, change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_latencies_are_milliseconds_unless_they_say_otherwise(tmp_path: Path) -> None:
    def change(t: Any) -> None:
        t["links"] = [["s1-p1", "s2-p1", 3], ["s1-p2", "s2-p2", "0.5ms"], ["s1-p3", "s2-p3", "20us", 0.5]]

    links = read_topology(changed(tmp_path, change)).links
    assert [(link.delay_ns, link.rate_bps) for link in links] == [
        (3_000_000, 0),
        (500_000, 0),
        (20_000, 500_000),
    ]


def test_several_topologies_need_a_choice(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has no topology"):
        find_topology(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "topology.json").write_text("{}")
    with pytest.raises(BadInputError, match=r"a/topology.json, b/topology.json"):
        find_topology(tmp_path)


@pytest.mark.parametrize(
    ("value", "bits", "expected"),
    [
        ("10.0.1.1", 32, b"\x0a\0\x01\x01"),
        ("08:00:00:00:01:11", 48, b"\x08\0\0\0\x01\x11"),
        ("::1", 128, b"\x01"),
        (0, 9, b"\0"),
        ("0x1ff", 9, b"\x01\xff"),
        ("255", 8, b"\xff"),
        (True, 1, b"\x01"),
    ],
)
def test_values_become_the_shortest_bytes(value: Any, bits: int, expected: bytes) -> None:
    assert octets(value, bits) == expected


@pytest.mark.parametrize(
    ("value", "bits"), [(512, 9), (-1, 8), ("ten", 32), ("10.0.0.1", 16), (None, 8), (1.5, 8)]
)
def test_values_that_do_not_fit_are_refused(value: Any, bits: int) -> None:
    with pytest.raises(BadInputError):
        octets(value, bits)


def test_entries_come_in_order_by_their_names() -> None:
    raw = json.loads((TUNNEL / "s1-runtime.json").read_text())
    default, host, into, *_ = updates(raw, info("router"))
    assert default.type == p4r.Update.MODIFY
    assert default.entity.table_entry.is_default_action
    assert host.type == p4r.Update.INSERT
    (match,) = host.entity.table_entry.match
    assert (match.lpm.value, match.lpm.prefix_len) == (b"\x0a\0\x01\x01", 32)
    assert [p.value for p in host.entity.table_entry.action.action.params] == [b"\x08\0\0\0\x01\x11", b"\x01"]
    (match,) = into.entity.table_entry.match
    assert (match.lpm.value, match.lpm.prefix_len) == (b"\x0a\0\x02\0", 24)


def test_what_lets_everything_pass_is_left_out_of_a_key() -> None:
    # P4Runtime specification, section 9.1.1: a match field that accepts everything is left out.
    p4info = info("ternary")
    ternary = p4i.MatchField.TERNARY
    table = next(t for t in p4info.tables if any(f.match_type == ternary for f in t.match_fields))
    fields = [f for f in table.match_fields if f.match_type == ternary]
    action = {a.preamble.id: a for a in p4info.actions}[table.action_refs[0].id]
    entry = {
        "table": table.preamble.name, "priority": 3, "match": {f.name: [5, 0] for f in fields},
        "action_name": action.preamble.name, "action_params": {p.name: 0 for p in action.params},
    }  # fmt: skip
    (update,) = updates({"table_entries": [entry]}, p4info)
    assert not update.entity.table_entry.match
    assert update.entity.table_entry.priority == 3


def test_groups_and_sessions() -> None:
    raw = {
        "multicast_group_entries": [
            {"multicast_group_id": 4, "replicas": [{"egress_port": 2, "instance": 7}]}
        ],
        "clone_session_entries": [
            {
                "clone_session_id": 5,
                "replicas": [{"egress_port": 3, "instance": 1}],
                "packet_length_bytes": 128,
            }
        ],
    }
    group, session = (u.entity.packet_replication_engine_entry for u in updates(raw, info("router")))
    assert group.multicast_group_entry.multicast_group_id == 4
    assert [(r.egress_port, r.instance) for r in group.multicast_group_entry.replicas] == [(2, 7)]
    assert session.clone_session_entry.session_id == 5
    assert session.clone_session_entry.packet_length_bytes == 128
    assert [r.egress_port for r in session.clone_session_entry.replicas] == [3]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"table": "I.nowhere"}, "no table I.nowhere"),
        ({"table": "I.routes", "match": {"hdr.ipv4.src": ["10.0.0.0", 8]}}, "no hdr.ipv4.src"),
        ({"table": "I.routes", "match": {"hdr.ipv4.dst": "10.0.0.0"}}, "hdr.ipv4.dst needs two values"),
        ({"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.0.0", 33]}}, "a prefix of 33 of 32 bits"),
        ({"table": "I.routes", "action_name": "I.fly"}, "no action I.fly"),
        ({"table": "I.routes", "action_name": "I.along"}, "I.along needs port"),
        ({"table": "I.routes", "action_name": "I.drop", "action_params": {"x": 1}}, "I.drop has no x"),
    ],
)
def test_a_bad_entry_is_refused_by_its_number(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match="table entry 1") as caught:
        updates({"table_entries": [entry]}, info("router"))
    assert message in str(caught.value)


def test_a_program_that_is_not_compiled_is_missed(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file or directory: compile the program first"):
        read_runtime(TUNNEL / "s1-runtime.json", TUNNEL)
    (tmp_path / "x.json").write_text('{"target": "bmv2"}')
    with pytest.raises(BadInputError, match="names no p4info"):
        read_runtime(tmp_path / "x.json", tmp_path)
