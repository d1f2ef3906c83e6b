"""The possible offsets of headers, and the cases in which they are unknown."""

from __future__ import annotations

import json
from typing import Any

from mrclab.switches.ebpf.codegen.analysis.header_offsets import find_header_offsets
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import JSON


def test_each_header_of_the_switch_program_has_its_places() -> None:
    places = find_header_offsets(read_program(JSON.read_bytes()))
    assert places is not None
    assert places["ethernet"] == {0}
    assert places["ipv6"] == {14}
    assert places["udp"] == {54, 94}
    assert places["earlier_hops[1]"] == {p + 8 + 16 + 20 for p in places["udp"]}
    assert {p + 8 + 16 + 20 * i for p in places["udp"] for i in range(8)} == places["hop"]


def test_nothing_is_known_of_headers_that_go_out_in_another_order_or_not_at_all() -> None:
    whole: dict[str, Any] = json.loads(JSON.read_bytes())
    order = whole["deparsers"][0]["order"]
    whole["deparsers"][0]["order"] = list(reversed(order))
    assert find_header_offsets(read_program(json.dumps(whole).encode())) is None
    whole["deparsers"][0]["order"] = order[:-1]
    assert find_header_offsets(read_program(json.dumps(whole).encode())) is None
