"""The constants of p4src/contract.py are equal to the constants in the P4 source."""

import re
import struct
from pathlib import Path

import pytest

from mrclab.controller.queues import queue_setting
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.p4src import contract
from mrclab.p4src.compile import HERE
from mrclab.topologies import LinkProfile

SOURCE = "\n".join(path.read_text() for path in sorted(Path(HERE).glob("*.p4")))
CODE = re.sub(r"//.*", "", SOURCE)
CONSTANTS = {
    name: value.replace("_", "")
    for name, value in re.findall(r"const\s+(?:bit<\d+>|\w+)\s+(\w+)\s*=\s*([0-9a-fA-Fx_]+)\s*;", CODE)
}
RENAMED = {"PROBE_MAX_HOPS": "MAX_HOPS"}
SAME = [
    *("DROP_COUNT", "OUTER_BYTES", "INNER_IPV6_BYTES", "TRANSPORT_BYTES", "TIMESTAMP_BYTES"),
    *("PRIORITY_TRIMMED", "PRIORITY_CONTROL", "PROBE_PORT", "PROBE_MAX_HOPS"),
]


@pytest.mark.parametrize("name", SAME)
def test_a_constant_has_the_value_of_the_p4_source(name: str) -> None:
    assert getattr(contract, name) == int(CONSTANTS[RENAMED.get(name, name)], 0)


def test_every_plain_constant_of_the_p4_source_that_python_has_is_compared() -> None:
    known = {RENAMED.get(name, name) for name in SAME}
    assert {name for name in CONSTANTS if hasattr(contract, name)} <= known


def test_drop_reasons_are_those_of_the_enumeration() -> None:
    (body,) = re.findall(r"enum bit<8> drop_t \{(.*?)\}", CODE, re.DOTALL)
    reasons = {name: int(value) for name, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)}
    assert reasons.pop("NONE") == 0
    assert reasons == {drop.name: drop.value for drop in contract.Drop}
    assert max(contract.Drop) < contract.DROP_COUNT
    assert f"<< {contract.DROP_COUNT.bit_length() - 1}) | (bit<32>)(bit<8>)meta.drop" in CODE


def test_clocks_and_rates_have_the_units_of_the_p4_source() -> None:
    shifts = re.findall(r"ingress_global_timestamp << (\d+)", CODE)
    assert len(shifts) == 2
    assert {1 << int(shift) for shift in shifts} == {contract.TICKS_PER_US}
    # Trimmed frames may use half of the link's rate, so the program counts twice the time for their bytes.
    times = re.findall(r"\* \(ticks_t\)byte_time\) >> (\d+)", CODE)
    assert sorted({1 << int(shift) for shift in times}) == [
        contract.BYTE_TIME_ONE // 2,
        contract.BYTE_TIME_ONE,
    ]


def test_a_ratio_is_compared_with_a_draw_below_one() -> None:
    draws = re.findall(r"random\(draw, 0, (0x[0-9a-f]+)\);\s+(?:random\(.*\);\s+)?if \(draw < ratio\)", CODE)
    assert [int(draw, 0) for draw in draws] == [contract.RATIO_ONE - 1] * 2


@pytest.mark.parametrize(
    ("header", "layout"), [("probe_t", contract.PROBE_HEADER), ("hop_t", contract.PROBE_RECORD)]
)
def test_a_record_has_the_fields_of_its_header(header: str, layout: str) -> None:
    (body,) = re.findall(rf"header {header} \{{(.*?)\}}", CODE, re.DOTALL)
    widths = [int(width) // 8 for width in re.findall(r"bit<(\d+)>", body)]
    assert [struct.calcsize(f"!{letter}") for letter in layout[1:]] == widths


@pytest.mark.parametrize("table", contract.TABLE_ACTIONS)
def test_tables_have_the_actions_that_python_writes(table: str) -> None:
    (body,) = re.findall(rf"table {table} \{{(.*?)\n    \}}", CODE, re.DOTALL)
    (actions,) = re.findall(r"actions = \{(.*?)\}", body, re.DOTALL)
    assert set(contract.TABLE_ACTIONS[table]) <= {name.strip() for name in actions.split(";")}


def test_the_profile_of_routes_exists() -> None:
    assert re.search(rf"action_selector\(.*\) {contract.WAYS_PROFILE};", CODE)


def test_traffic_classes_use_actions_of_their_table() -> None:
    assert set(contract.CLASS_ACTIONS.values()) == set(contract.TABLE_ACTIONS[contract.TRAFFIC_CLASS_TABLE])
    assert set(contract.SWITCH_MAP.values()) <= set(contract.CLASS_ACTIONS)


def test_hosts_use_the_codepoints_of_the_contract() -> None:
    dscp = MrcConfig().dscp
    assert contract.SWITCH_MAP[dscp.trimmable] == contract.SWITCH_MAP[dscp.trimmable_retx]
    assert contract.SWITCH_MAP[dscp.control] == "control"
    profile = LinkProfile(rate_bps=10**9, delay_ns=0, mtu_bytes=4500)
    assert queue_setting(profile, last_hop=False).trim_dscp == dscp.trimmed
    assert queue_setting(profile, last_hop=True).trim_dscp == dscp.trimmed_lasthop
