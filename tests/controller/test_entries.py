import dataclasses

import finsy as fy
from finsy.p4schema import P4Schema

from controller.entries import MY_SID, NEXT_HOP, Entry, find_drift, switch_entries
from controller.pipeline import shipped_pipeline
from topologies import load_fabric

FABRIC = load_fabric("tiny")


def test_a_t0_knows_itself_its_t1s_and_its_nics() -> None:
    entries = switch_entries(FABRIC, FABRIC.switch("p1-t0-0"))
    assert [e.prefix for e in entries if e.table == MY_SID] == ["fcbb:bb00:1400::/48"]
    assert [(e.prefix, dict(e.params)["port"]) for e in entries if e.table == NEXT_HOP] == [
        ("fcbb:bb00:1800::/48", 3),
        ("fcbb:bb00:1801::/48", 4),
        ("fcbb:bb00:1c00::/48", 1),
        ("fcbb:bb00:1c01::/48", 2),
    ]


def test_a_t1_knows_itself_and_its_t0s() -> None:
    entries = switch_entries(FABRIC, FABRIC.switch("p0-t1-1"))
    assert [e.prefix for e in entries] == ["fcbb:bb00:801::/48", "fcbb:bb00:400::/48", "fcbb:bb00:401::/48"]


def test_macs_are_those_of_the_link() -> None:
    switch = FABRIC.switch("p0-t0-1")
    port = switch.port_to("h3")
    entry = next(
        e
        for e in switch_entries(FABRIC, switch)
        if e.table == NEXT_HOP and dict(e.params)["port"] == port.number
    )
    assert dict(entry.params)["dst_mac"] == int.from_bytes(FABRIC.host("h3").ports[0].mac, "big")


def test_entries_survive_the_way_to_p4runtime_and_back() -> None:
    schema = P4Schema(shipped_pipeline().p4info)
    for switch in FABRIC.switches:
        for entry in switch_entries(FABRIC, switch):
            message = entry.to_p4().encode(schema)
            assert Entry.from_p4(fy.P4TableEntry.decode(message, schema)) == entry


def test_drift_tells_missing_unexpected_and_changed_apart() -> None:
    wanted = switch_entries(FABRIC, FABRIC.switch("p0-t0-0"))
    changed = dataclasses.replace(wanted[2], params=(("dst_mac", 1), ("port", 9), ("src_mac", 2)))
    stranger = Entry(MY_SID, "fcbb:bb00:9999::/48", "un")
    drift = find_drift("p0-t0-0", wanted, (*wanted[:2], changed, *wanted[4:], stranger))
    assert drift.missing == (wanted[3],)
    assert drift.unexpected == (stranger,)
    assert drift.changed == (wanted[2],)
    assert not find_drift("p0-t0-0", wanted, tuple(reversed(wanted)))
