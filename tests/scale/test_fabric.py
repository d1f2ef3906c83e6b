"""Sizes, cost and blast radius, compared with the paper's table, and the claims that follow from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import InputError
from mrclab.scale.claims import claims
from mrclab.scale.fabric import Design, blast_radius, smallest_design
from mrclab.scale.parts import TYPICAL, Parts, load_parts, parse_parts

PARTS = Parts()
TABLE = {
    # tiers, planes: radix, NICs, NICs of a T0, tiers of a plane, switches, hops, longest path, paths
    (3, 1): (64, 65_536, 32, (2048, 2048, 1024), 5120, 3, 5, 1024),
    (2, 4): (256, 32_768, 128, (256, 128), 1536, 2, 3, 128),
    (2, 8): (512, 131_072, 256, (512, 256), 6144, 2, 3, 256),
}


@pytest.mark.parametrize("shape", TABLE)
def test_the_papers_fabrics(shape: tuple[int, int]) -> None:
    built = Design(*shape, PARTS).built()
    assert (
        built.design.radix,
        built.nics,
        built.nics_per_t0,
        built.tier_sizes,
        built.switches,
        built.full_rate_hops,
        built.longest_path,
        built.paths_per_plane,
    ) == TABLE[shape]
    assert built.switches * 64 == built.nics * (5 if shape[0] == 3 else 3)


@given(tiers=st.integers(1, 4), planes=st.sampled_from((1, 2, 4, 8, 16)), share=st.floats(0.001, 1))
def test_a_fabric_has_ports_for_all_its_links(tiers: int, planes: int, share: float) -> None:
    design = Design(tiers, planes, PARTS)
    built = design.built(max(1, int(design.most_nics * share)))
    k, half = design.radix, built.nics_per_t0
    down = built.tier_sizes[0] * (half if tiers > 1 else k)
    assert built.nics <= down
    for lower, upper in zip(built.tier_sizes, built.tier_sizes[1:], strict=False):
        up_ports = k if upper == built.tier_sizes[-1] and upper != lower else half
        assert lower * half <= upper * max(up_ports, half)
    assert built.links_per_tier in (0, built.tier_sizes[0] * half * planes)
    assert built.power_w > 0
    full = design.built()
    assert full.switches * k == (2 * tiers - 1) * full.nics * planes


def test_optics_are_two_thirds_or_half_with_copper_to_the_nics() -> None:
    def ratio(parts: Parts) -> float:
        two, three = Design(2, 8, parts).built(), Design(3, 1, parts).built()
        return (two.modules / two.nics) / (three.modules / three.nics)

    assert ratio(PARTS) == pytest.approx(2 / 3)
    assert ratio(PARTS.model_copy(update={"host_links": "copper"})) == pytest.approx(1 / 2)


@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.parametrize("planes", [1, 2, 4, 8, 16])
def test_blast_radii_add_up(tiers: int, planes: int) -> None:
    built = Design(tiers, planes, PARTS).built()
    rows = {row.kind: row for row in blast_radius(built)}
    assert rows["NIC-T0 link"].of_each == 1 / planes
    assert rows["T0-T1 link"].of_each == 2 / built.design.radix
    for kind in ("NIC-T0 link", "T0-T1 link", "T1", "plane"):
        assert rows[kind].count * rows[kind].of_fabric == pytest.approx(1)
    assert rows["T0"].count * rows["T0"].nics == planes * built.nics
    assert all(0 < row.of_each <= 1 and row.nics <= built.nics for row in rows.values())


def test_the_claims_come_out_as_the_page_says() -> None:
    found = {claim.text: claim.outcome for claim in claims(PARTS)}
    assert found["NICs of two tiers, 8 planes"] == "reproduced"
    assert found["a T0-T1 link, of its T0's uplinks"] == "reproduced"
    assert found["switches, against three tiers"] == "on a condition"
    assert found["packets sent again in that minute"] == "contradicted"
    assert sum(outcome == "contradicted" for outcome in found.values()) == 1


def test_other_chips_contradict_the_claims() -> None:
    parts = parse_parts("switch: {capacity: 25600 Gbit/s}\n", "half.yaml")
    found = {claim.text: claim for claim in claims(parts)}
    assert found["NICs of two tiers, 8 planes"].outcome == "contradicted"
    assert found["NICs of two tiers, 8 planes"].derived == "32,768"


def test_the_shipped_table_is_that_of_the_defaults() -> None:
    assert load_parts(TYPICAL) == PARTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switch: {speed: 1}", "bad.yaml:1: switch has no key 'speed'"),
        ("switch: {capacity: fast}", "must be a rate"),
        ("host_links: radio", "must be"),
        ("failures: {nic: {mtbf_hours: 0, repair_hours: 1}}", "must be from"),
        ("job: {communication: 2}", "must be from 0"),
        ("job: {restart: soon}", "must be a time"),
    ],
)
def test_mistakes_in_the_table_are_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_parts(text, "bad.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_refused() -> None:
    for tiers, planes, nics in ((2, 8, 131_073), (5, 8, 1), (2, 17, 1), (2, 8, 0)):
        with pytest.raises(InputError):
            Design(tiers, planes, PARTS).built(nics)
    odd = parse_parts("nic: {rate: 700 Gbit/s}", "odd.yaml")
    with pytest.raises(InputError, match="no even number of ports"):
        Design(2, 1, odd).built()
    assert smallest_design(131_072, 8, PARTS).tiers == 2
    assert smallest_design(131_072, 1, PARTS).tiers == 4
