import dataclasses

import finsy as fy
from finsy.p4schema import P4Schema

from mrclab.controller.entries import (
    Entry,
    find_drift,
    switch_entries,
)
from mrclab.controller.pipeline import shipped_pipeline
from mrclab.controller.queues import bytes_of, queue_setting
from mrclab.hosts.mrc.config import DscpMap
from mrclab.p4src.contract import (
    MARKING_TABLE,
    MY_SID_TABLE,
    NEXT_HOP_TABLE,
    PORT_QUEUE_TABLE,
    SWITCH_MAP,
    TRAFFIC_CLASS_TABLE,
)
from mrclab.topologies import LinkProfile, load_fabric

FABRIC = load_fabric("tiny")


def test_a_t0_knows_itself_its_t1s_and_its_nics() -> None:
    entries = switch_entries(FABRIC, FABRIC.switch("p1-t0-0"))
    assert [e.match for e in entries if e.table == MY_SID_TABLE] == ["fcbb:bb00:1400::/48"]
    assert [(e.match, dict(e.params)["port"]) for e in entries if e.table == NEXT_HOP_TABLE] == [
        ("fcbb:bb00:1800::/48", 3),
        ("fcbb:bb00:1801::/48", 4),
        ("fcbb:bb00:1c00::/48", 1),
        ("fcbb:bb00:1c01::/48", 2),
    ]


def test_a_t1_knows_itself_and_its_t0s() -> None:
    entries = switch_entries(FABRIC, FABRIC.switch("p0-t1-1"))
    assert [e.match for e in entries if e.table in (MY_SID_TABLE, NEXT_HOP_TABLE)] == [
        "fcbb:bb00:801::/48",
        "fcbb:bb00:400::/48",
        "fcbb:bb00:401::/48",
    ]


def test_ports_get_rate_and_depths_and_marks_but_for_those_to_nics() -> None:
    entries = switch_entries(FABRIC, FABRIC.switch("p1-t0-0"))
    queues = {e.match: dict(e.params) for e in entries if e.table == PORT_QUEUE_TABLE}
    assert {port: q["trim_dscp"] for port, q in queues.items()} == {"1": 16, "2": 16, "3": 12, "4": 12}
    assert [e.match for e in entries if e.table == MARKING_TABLE] == ["3", "4"]
    assert {(e.match, e.action) for e in entries if e.table == TRAFFIC_CLASS_TABLE} == {
        ("4", "trimmable"),
        ("8", "trimmable"),
        ("12", "cut"),
        ("16", "cut"),
        ("46", "urgent"),
    }


def test_codepoints_are_those_of_the_hosts() -> None:
    hosts = DscpMap()
    codepoints = [hosts.trimmable, hosts.trimmable_retx, hosts.trimmed, hosts.trimmed_lasthop, hosts.control]
    assert codepoints == list(SWITCH_MAP)
    assert hosts.no_trim not in SWITCH_MAP


def test_depths_are_parts_of_the_bandwidth_delay_product() -> None:
    gigabit = LinkProfile(10**9, 0, 4300)
    setting = queue_setting(gigabit, last_hop=False)
    assert bytes_of(setting.trim_from, 10**9) == 125_000
    assert bytes_of(setting.limit, 10**9) == 250_000
    assert setting.mark is not None
    assert [bytes_of(depth, 10**9) for depth in setting.mark] == [25_000, 75_000]
    last = queue_setting(gigabit, last_hop=True)
    assert (bytes_of(last.trim_from, 10**9), last.mark) == (187_500, None)
    # At 1 Gbit/s a byte takes 8 ns, or 8.192 ticks.
    assert setting.byte_time == round(8.192 * 65536)


def test_a_slow_link_can_hold_frames_too() -> None:
    setting = queue_setting(LinkProfile(10**7, 0, 4300), last_hop=False)
    assert bytes_of(setting.trim_from, 10**7) == 16 * 4314


def test_a_long_link_gets_a_deep_queue() -> None:
    near = queue_setting(LinkProfile(10**9, 0, 4300), last_hop=False)
    far = queue_setting(LinkProfile(10**9, 2_000_000, 4300), last_hop=False)
    assert far.trim_from == 5 * near.trim_from


def test_macs_are_those_of_the_link() -> None:
    switch = FABRIC.switch("p0-t0-1")
    port = switch.port_to("h3")
    entry = next(
        e
        for e in switch_entries(FABRIC, switch)
        if e.table == NEXT_HOP_TABLE and dict(e.params)["port"] == port.number
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
    stranger = Entry(MY_SID_TABLE, "fcbb:bb00:9999::/48", "un")
    drift = find_drift("p0-t0-0", wanted, (*wanted[:2], changed, *wanted[4:], stranger))
    assert drift.missing == (wanted[3],)
    assert drift.unexpected == (stranger,)
    assert drift.changed == (wanted[2],)
    assert not find_drift("p0-t0-0", wanted, tuple(reversed(wanted)))
