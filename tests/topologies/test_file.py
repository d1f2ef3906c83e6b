"""The topology file's JSON schema and its table in the docs come from its model."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from mrclab.topologies import shipped_topologies
from mrclab.topologies.file import (
    HostFile,
    LinkExceptionFile,
    LinkKindFile,
    LinksFile,
    TopologyFile,
    schema_text,
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


def test_the_published_schema_is_fresh() -> None:
    """Write it anew: python -c "from mrclab.topologies.file import schema_text as s; print(s(), end='')"."""
    assert (ROOT / "topologies/schema.json").read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("name", shipped_topologies())
def test_shipped_topologies_fit_the_schema(name: str) -> None:
    text, _ = TOPOLOGIES.text(name)
    jsonschema.validate(yaml.safe_load(text), json.loads(schema_text()))


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
