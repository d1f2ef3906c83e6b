import json
import pickle
import re
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.experiments.spec.faults import TimedFault
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import place
from mrclab.experiments.spec.plan import plan_text
from mrclab.experiments.spec.published import page_path, scenario_schema, with_tables
from mrclab.experiments.spec.scenario import load_scenario, parse_overrides, parse_scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.hosts.transports import DEPLOYED
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.linux.errors import InputError
from mrclab.run import listed_figures
from mrclab.topologies import fabric_from_text, fabric_text, one_plane
from tests.support.paths import ROOT

SHORT = """\
name: short
topology: tiny
transports: [mrc, oblivious]
workload: {kind: stream}
"""

LONG = """\
name: long
description: all there is
claim: none
topology: lab
transports:
  mrc: {options: {spare_evs_per_plane: 1}}
  bgp: {use: ecmp+controller, detection: 3 s}
workload:
  kind: all-reduce
  ranks: 4
  sizes: [64 KiB, 1 MiB, 4096]
  iterations: 3
faults:
  - {kind: loss, where: [h0:p*-t0-*, "p0-t0-0:p0-t1-?"], ratio: 0.01, at: 10 ms}
  - {kind: blackhole, where: random, at: 1 s, duration: 100 ms, every: 500 ms, count: 3, direction: up}
measure: {series: 500 us}
repetitions: 7
seed: 4
"""


def parse(text: str, *sets: str) -> Scenario:
    return parse_scenario(text, "file.yaml", parse_overrides(sets))


def test_a_short_one_has_defaults() -> None:
    found = parse(SHORT)
    assert [t.name for t in found.transports] == ["mrc", "oblivious"]
    assert found.transports[1].options == {**DEPLOYED, "ev_health": False}
    assert found.workload.params["message_bytes"] == 8192
    assert found.measure.series_ns == 1_000_000
    assert found.faults == ()
    json.dumps(found.to_dict())


def test_a_long_one_is_read_in_base_units() -> None:
    found = parse(LONG)
    mrc, bgp = found.transports
    assert mrc.options == {**DEPLOYED, "spare_evs_per_plane": 1}
    assert (bgp.name, bgp.kind, bgp.detection_ns) == ("bgp", "rocev2", 3_000_000_000)
    assert found.workload.params["sizes_bytes"] == (65536, 1 << 20, 4096)
    repeated = found.faults[1]
    assert isinstance(repeated, TimedFault)
    assert repeated.every_ns == 500_000_000
    assert found.measure.series_ns == 500_000
    assert (found.repetitions, found.seed) == (7, 4)


def test_set_overrides_any_key() -> None:
    found = parse(LONG, "workload.ranks=2", "measure.series=2 ms", "transports=[tcp]")
    assert found.workload.params["ranks"] == 2
    assert found.measure.series_ns == 2_000_000
    assert [t.name for t in found.transports] == ["tcp"]


def test_a_topology_may_stand_in_place() -> None:
    text = SHORT.replace("topology: tiny", "topology: {name: mine, planes: 1, t0: 2, t1: 2, hosts: 4}")
    assert parse(text).fabric().name == "mine"
    with pytest.raises(InputError, match=r"^file\.yaml:2: topology: planes must be from 1"):
        parse(text.replace("planes: 1", "planes: 0"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[mrc, oblivious]", "[mrc, quic]", "file.yaml:3: transports: no transport 'quic'"),
        ("[mrc, oblivious]", "[]", "file.yaml:3: transports is empty"),
        (
            "[mrc, oblivious]",
            "{mrc: {detection: 1 s}}",
            "file.yaml:3: transports.mrc: detection is for routing",
        ),
        ("[mrc, oblivious]", "{mrc: {colour: 1}}", "file.yaml:3: transports.mrc has no key 'colour'"),
        ("kind: stream", "kind: gossip", "file.yaml:4: workload needs a kind (stream, bidirectional"),
        ("kind: stream", "kind: stream, rate: fast", "file.yaml:4: workload.rate must be a rate such as"),
        ("kind: stream", "kind: stream, sizes: [1]", "file.yaml:4: workload has no key 'sizes'"),
        ("kind: stream", "kind: stream, duration: 1 ns", "workload.duration must be from 0.001 ms to 3600 s"),
        ("kind: stream", "kind: all-reduce, sizes: [many]", "file.yaml:4: workload.sizes[0] must be a size"),
        ("name: short", "name: short\nfigure: fig99", "file.yaml:2: figure: there is no 'fig99'"),
        ("topology: tiny", "topology: nowhere", "file.yaml:2: topology: no topology 'nowhere'"),
        ("name: short", "name: short\nspeed: 3", "file.yaml:2: a scenario has no key 'speed'"),
        ("name: short\n", "", "file.yaml:1: a scenario needs 'name'"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(old: str, new: str, message: str) -> None:
    assert old in SHORT
    with pytest.raises(InputError) as caught:
        parse(SHORT.replace(old, new))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{kind: gremlins, where: random}", "file.yaml:5: faults[0].kind must be blackhole, loss"),
        ("{kind: loss}", "file.yaml:5: faults[0] needs 'where'"),
        ("{kind: loss, where: random, ratio: 2}", "file.yaml:5: faults[0].ratio must be from 0 to 1"),
        ("{kind: loss, where: random, ratio: 0}", "file.yaml:5: faults[0].ratio must be above 0"),
        ("{kind: switch-reboot, where: p0-t1-0}", "faults[0].kind: a switch-reboot needs a duration"),
        (
            "{kind: switch-death, where: random, direction: up}",
            "file.yaml:5: faults[0].direction: a switch-death does not take it",
        ),
        ("{kind: carrier, where: random, ratio: 0.5}", "faults[0].ratio: a carrier does not take it"),
        (
            "{kind: delay, where: random, delay: 0}",
            "file.yaml:5: faults[0].delay must be longer than 0",
        ),
        ("{kind: loss, where: []}", "file.yaml:5: faults[0].where is empty"),
        ("{kind: loss, where: random, every: 1 ms, duration: 1 ms}", "must be longer than its duration"),
        ("{kind: flap, where: random}", "file.yaml:5: faults[0].kind: a flap needs a duration"),
        (
            "{kind: flap, where: random, duration: 1 s, period: 20 ms, down: 20 ms}",
            "file.yaml:5: faults[0].period must be longer than down",
        ),
        ("{kind: loss, where: random, at: 5 s}", "file.yaml:5: faults[0].at: the workload is over by then"),
        ("{kind: loss, where: random, trials: 0}", "file.yaml:5: faults[0].trials must be from 1"),
        ("{kind: flap, where: random, trials: 2}", "faults[0].kind: a flap has times of its own"),
        ("{kind: loss, where: random, trials: 2, at: 1 s}", "faults[0] has no key 'at'"),
        ("{kind: random, shortest: 2 s, longest: 1 s}", "faults[0].shortest is longer than longest"),
        ("{kind: random, where: h0}", "file.yaml:5: faults[0] has no key 'where'"),
    ],
)
def test_a_mistake_in_a_fault_is_one_line_with_its_place(fault: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"{SHORT}faults: [{fault}]\n")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workload={kind: stream, src: h9}", "workload.src: tiny has no host 'h9' (it has h0 to h3)"),
        ("transports={mrc: {options: {nope: 1}}}", "transports.mrc.options: there is no option 'nope'"),
        ("transports={mrc: {options: {mpr: 5}}}", "transports.mrc.options: mpr must be a multiple of 128"),
        ("transports={rocev2: {options: {nope: 1}}}", "transports.rocev2.options: there is no option 'nope'"),
        ("transports={tcp: {options: {nope: 1}}}", "transports.tcp.options: there is no option 'nope'"),
        ("workload={kind: all-reduce, ranks: 9}", "workload.ranks: 9 of 4 hosts: 2 to 4, or 0 for all"),
        (
            "workload={kind: all-reduce, ranks: 9, ranks_per_host: 2}",
            "workload.ranks: 9 of 4 hosts with 2 ranks each: 2 to 8, or 0 for all",
        ),
        (
            "faults=[{kind: loss, where: p7-t0-0:p7-t1-0}]",
            "faults[0].where: 'p7-t0-0:p7-t1-0' matches nothing in tiny: give a link, such as",
        ),
        ("faults=[{kind: loss, where: 'h*:p0-*', pick: 9}]", "faults[0].pick: there are only 4 such places"),
        (
            "topology={name: one, planes: 1, t0: 1, t1: 1, hosts: 1}",
            "the topology one has one host, but traffic needs two",
        ),
    ],
)
def test_what_the_fabric_lacks_is_named(change: str, message: str) -> None:
    found = parse(SHORT, change)
    with pytest.raises(InputError, match=r"^scenario short: ") as caught:
        found.check_against(found.fabric())
    assert message in str(caught.value)


def test_too_few_entries_are_named_with_their_least_number() -> None:
    jobs = "{a: {kind: collective, operation: all-reduce, size: 1 KiB}}"
    with pytest.raises(InputError, match=r"workload\.jobs needs at least 2 entries"):
        parse(SHORT, f"workload={{kind: tenants, jobs: {jobs}}}")


def test_a_kernels_nic_has_no_room_for_several_ranks_and_no_longer_wires() -> None:
    found = parse(SHORT, "transports=[mrc, tcp]", "workload={kind: all-reduce, ranks_per_host: 2}")
    with pytest.raises(
        InputError,
        match=r"^scenario short: workload.ranks_per_host: a kernel.s NIC takes one rank only, as that of t",
    ):
        found.check_against(found.fabric())
    with pytest.raises(InputError, match="propagation: the NIC of tcp is the kernel's, which has none"):
        parse(SHORT, "transports=[mrc, tcp]", "propagation=20 ms")
    assert parse(SHORT, "propagation=20 ms").propagation_ns == 20_000_000


def test_ranks_fill_a_host_before_the_next() -> None:
    found = parse(SHORT, "workload={kind: all-reduce, ranks: 5, ranks_per_host: 2}")
    fabric = found.fabric()
    placement = place(found.workload.kind, found.workload.params, fabric, 1)
    assert placement.hosts == ("h0", "h0", "h2", "h2", "h1")
    assert placement.ranks_by_host() == {"h0": [0, 1], "h2": [2, 3], "h1": [4]}
    assert placement.links_used(fabric) == {link.name for link in fabric.links if "h3" not in link.name}
    assert set(placement.params) == {"sizes_bytes", "iterations", "warmup_iterations", "dtype"}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    """Return a validator for the published schema. Check first that the schema itself is valid."""
    published = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(published)
    return jsonschema.Draft202012Validator(published)


def test_the_schema_takes_what_the_parser_takes_and_no_other(
    schema: jsonschema.Draft202012Validator,
) -> None:
    for text in (SHORT, LONG):
        schema.validate(yaml.safe_load(text))
    for old, new in (("kind: stream", "kind: gossip"), ("mrc, ", "quic, "), ("name: short", "speed: 3")):
        with pytest.raises(jsonschema.ValidationError):
            schema.validate(yaml.safe_load(SHORT.replace(old, new)))


def test_the_plan_tells_fabrics_ranks_and_faults() -> None:
    plan = plan_text(parse(LONG))
    assert "bgp: rocev2 over ecmp, lab-1plane with 1 planes, NICs of 1 x 4000 Mbit/s" in plan
    assert "0 on h0, 1 on h2, 2 on h4, 3 on h6" in plan
    assert "loss on h0:p0-t0-0 ratio 0.01 from 10 ms to the end" in plan
    assert plan.count("blackhole on") == 2 * 3


def test_the_example_of_a_training_in_virtual_time_is_a_scenario() -> None:
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    scenario = parse_scenario(text, "docs/training.md")
    scenario.check_against(scenario.fabric())
    assert scenario.workload.kind == "transformer"


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["name", "topology", "transports", "workload", "faults", "measure", "seed"]),
)
def test_nonsense_is_refused_in_one_line(value: Any, key: str) -> None:
    document = yaml.safe_load(SHORT)
    document[key] = value
    refusal = ""
    try:
        parse(json.dumps(document, ensure_ascii=False))
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal


def test_every_named_transport_says_what_it_is() -> None:
    assert all(t.meaning and t.name == name for name, t in TRANSPORTS.items())


def test_a_name_that_is_no_scenario_lists_those_there_are() -> None:
    with pytest.raises(InputError, match="no scenario 'nothing'"):
        load_scenario("nothing")


SHIPPED = SCENARIOS.names()


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("target", ["ebpf", "bmv2"])
def test_what_is_shipped_fits_its_fabric_and_has_a_plan(name: str, target: str) -> None:
    scenario = load_scenario(name, target=target)
    if load_scenario(name).target == "sim":
        with pytest.raises(InputError, match="only --target sim has"):
            scenario.check_against(scenario.fabric())
        scenario = load_scenario(name)
    scenario.check_against(scenario.fabric())
    assert scenario.name == name
    assert len(plan_text(scenario).splitlines()) >= 5


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "random-faults"])
def test_what_is_shipped_is_judged(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.claim
    assert scenario.figure


def test_every_figure_that_is_listed_is_shipped() -> None:
    assert set(listed_figures()) <= set(SHIPPED)
    assert all(name in listed_figures() for name in SHIPPED if name.startswith("fig"))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_schema_takes_what_is_shipped(name: str, schema: jsonschema.Draft202012Validator) -> None:
    text, _ = SCENARIOS.text(name)
    schema.validate(yaml.safe_load(text))


def test_the_tables_of_keys_are_fresh() -> None:
    page = page_path().read_text(encoding="utf-8")
    assert with_tables(page) == page


def test_a_scenario_goes_to_another_process() -> None:
    found = parse(LONG)
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_scenario_puts_a_codepoint_into_another_class_of_its_fabric() -> None:
    fabric = parse(SHORT, "classes={8: high}").fabric()
    assert fabric.classes == ((8, "high"),)
    assert fabric_from_text(fabric_text(one_plane(fabric))).classes == fabric.classes
    with pytest.raises(InputError, match=r"classes\.64: a DSCP is a number from 0 to 63, not '64'"):
        parse(SHORT, "classes={64: high}")
    with pytest.raises(InputError, match=r"classes\.8 must be data, trimmable, high or control, not 'low'"):
        parse(SHORT, "classes={8: low}")


def test_the_busiest_link_is_looked_for_under_traffic() -> None:
    """The busiest link is found 200 ms before the measurement, so a short warm-up is made longer."""
    busiest = "faults=[{kind: blackhole, where: busiest, at: 100 ms, duration: 500 ms}]"
    assert parse(SHORT, "warmup=100 ms", busiest).live_warmup_ns == 400_000_000
    assert parse(SHORT, "warmup=600 ms", busiest).live_warmup_ns == 600_000_000
    assert parse(SHORT, "warmup=100 ms").live_warmup_ns == 100_000_000
