"""The topology file's JSON schema and its table in the docs are generated from its model."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from mrclab.linux.errors import InputError
from mrclab.topologies import shipped_topologies
from mrclab.topologies.build import build_fabric
from mrclab.topologies.file import (
    HostFile,
    LinkExceptionFile,
    LinkKindFile,
    LinksFile,
    TopologyFile,
    topology_schema,
)
from mrclab.topologies.shipped import TOPOLOGIES
from mrclab.topologies.yaml_lines import MAX_CHARACTERS
from mrclab.topologies.yaml_model import YamlModel

ROOT = Path(__file__).parents[2]
PARTS: dict[str, type[YamlModel]] = {
    "": TopologyFile,
    "hosts[].": HostFile,
    "links.": LinksFile,
    "links.host., links.fabric.": LinkKindFile,
    "links.except[].": LinkExceptionFile,
}


@pytest.mark.parametrize("name", shipped_topologies())
def test_shipped_topologies_fit_the_schema(name: str) -> None:
    text, _ = TOPOLOGIES.text(name)
    jsonschema.validate(yaml.safe_load(text), topology_schema())


def test_the_docs_have_every_key_and_no_other() -> None:
    page = (ROOT / "docs/topologies.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", page, flags=re.M))
    wanted = {}
    for prefix, model in PARTS.items():
        for name, field in model.model_fields.items():
            key = ", ".join(part + (field.alias or name) for part in prefix.split(", "))
            wanted[key] = field.description
    assert {key: text for key, text in documented.items() if key not in shipped_topologies()} == wanted


def test_of_a_file_no_more_is_read_than_may_be_in_one(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("w") as file:
        file.truncate(64 * MAX_CHARACTERS)
    text, _ = TOPOLOGIES.text(str(large))
    assert len(text) == MAX_CHARACTERS + 1


SHORT = "name: x\nplanes: 2\nt0: 2\nt1: 4\nhosts: 8\n"


@pytest.mark.parametrize(("factor", "rate_bps"), [("1", 10**11), ("2", 5 * 10**10), ("0.5", 2 * 10**11)])
def test_oversubscription_sets_the_rate_of_links_to_t1s(factor: str, rate_bps: int) -> None:
    text = f"{SHORT}oversubscription: {factor}\nlinks: {{host: {{rate: 100 Gbit/s}}, fabric: {{delay: 3us}}}}"
    fabric = build_fabric(text, "f")
    profiles = {link.kind: link.profile for link in fabric.links}
    assert profiles["fabric"].rate_bps == rate_bps
    assert profiles["fabric"].delay_ns == 3000
    assert profiles["host"].rate_bps == 10**11


def test_on_rails_neighbours_are_at_different_t0s() -> None:
    fabric = build_fabric(f"{SHORT}racks: rails", "f")
    assert [host.rack for host in fabric.hosts] == [0, 1] * 4


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("oversubscription: 2\nlinks: {fabric: {rate: 1 Gbit/s}}", "links.fabric has a rate already"),
        ("oversubscription: 1000\nlinks: {host: {rate: 1 Mbit/s}}", "links to T1s would have 1,000 bit/s"),
        ("racks: rings", "racks"),
        ("oversubscription: 0", "must be from 0.01 to 1000"),
    ],
)
def test_an_oversubscription_that_makes_no_sense_is_refused(more: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build_fabric(SHORT + more, "f")
