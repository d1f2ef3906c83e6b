from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import InputError
from mrclab.topologies.yaml_lines import MAX_CHARACTERS, Place, read_yaml
from mrclab.topologies.yaml_model import Number, Rate, Size, Time, WholeNumber, YamlModel, validated

TEXT = """\
name: x
hosts:
- {name: a, rack: 0}
- name: b
  rack: 1
links: {host: {rate: 1 Gbit/s}}
"""


def test_every_key_and_item_has_its_line() -> None:
    document = read_yaml(TEXT, "f.yaml")
    assert document.data["hosts"] == [{"name": "a", "rack": 0}, {"name": "b", "rack": 1}]
    assert document.place(("hosts", 1, "rack")) == Place("f.yaml", 5)
    assert document.place(("hosts", 1)) == Place("f.yaml", 4)
    assert document.place(("links", "host", "rate", "nothing")) == Place("f.yaml", 6)
    assert str(document.error("must not", ("hosts", 0))) == "f.yaml:3: must not"


def test_parts_that_are_no_keys_are_skipped() -> None:
    assert read_yaml(TEXT, "f.yaml").known(("hosts", "list[Host]", 1, "rack")) == ("hosts", 1, "rack")


def test_a_value_from_elsewhere_keeps_its_own_place() -> None:
    document = read_yaml(TEXT, "f.yaml")
    changed = document.with_value(("links", "fabric", "rate"), "2 Gbit/s", "--set links.fabric.rate")
    assert changed.data["links"] == {"host": {"rate": "1 Gbit/s"}, "fabric": {"rate": "2 Gbit/s"}}
    assert changed.place(("links", "fabric", "rate")) == Place("--set links.fabric.rate")
    assert changed.place(("links", "host")) == Place("f.yaml", 6)
    assert "fabric" not in document.data["links"]
    with pytest.raises(InputError, match=r"^--set name.x: name has no 'x'"):
        document.with_value(("name", "x"), 1, "--set name.x")


BAD = {
    "aliases by the million": (
        "a: &a [" + "1," * 200 + "]\nb: &b [" + "*a," * 200 + "]\nc: [" + "*b," * 200 + "]",
        "f.yaml:1: c",
    ),
    "an alias to itself": ("a: &a {b: *a}", "f.yaml:1: a.b: an alias refers"),
    "3,000 brackets": ("a: " + "[" * 3000, "f.yaml:1: not YAML: nested deeper"),
    "nested by aliases": (
        "\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [[[[*a{n - 1}]]]]" for n in range(1, 20))]),
        "nested deeper than 50",
    ),
    "400 digits": ("a: " + "9" * 400, "f.yaml:1: a: a number of more than 40 digits"),
    "an empty int": ("a: !!int ''", "f.yaml:1: a: '' is no value of the type int"),
    "a bool that is none": ("b: 1\na: !!bool x", "f.yaml:2: a: 'x' is no value of the type bool"),
    "binary": ("a: [!!binary x]", r"f.yaml:1: a\[0\]: the tag !!binary is not allowed"),
    "python": ("a: !!python/object:os.system x", "is not allowed"),
    "a set": ("a: !!set {x}", "the tag !!set is not allowed"),
    "too large": ("a: " + "x" * MAX_CHARACTERS, "f.yaml: larger than 1 MiB"),
    "a list": ("- a", "the file must be a mapping"),
    "nothing": ("# nothing", "the file is empty"),
    "two documents": ("a: 1\n---\nb: 2", "not YAML"),
    "a key twice": ("a: 1\na: 2", "f.yaml:2: 'a' is given twice"),
    "a list as key": ("? [a]\n: 1", "a key must be a word"),
    "half a character": ('a: "\\ud800"', r"f.yaml:1: a: '\\ud800' has a character that no file can have"),
    "a zero": ('"\\0": 1', r"f.yaml:1: '\\x00' has a character that no file can have"),
    "another version": ("%YAML 9.0\n---\na: 1", "not YAML"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_what_is_not_plain_or_too_much_is_refused_in_one_line(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        read_yaml(text, "f.yaml")
    assert "\n" not in str(caught.value)


def test_a_date_is_text() -> None:
    assert read_yaml("a: 2026-01-01\nb: !!timestamp x", "f.yaml").data == {"a": "2026-01-01", "b": "x"}


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    message = ""
    try:
        read_yaml(text, "f.yaml")
    except InputError as error:
        message = str(error)
    assert "\n" not in message


class Part(YamlModel):
    name: str
    share: Annotated[float, Number(0, 1)] = 1.0


class Whole(YamlModel):
    what = "a test"

    name: str
    count: Annotated[int, WholeNumber(1, 9)] = 1
    kind: Literal["a", "b"] = "a"
    speed: Annotated[int, Rate(10**6, 10**11)] = 10**9
    wait: Annotated[int, Time(10**6)] = 10**6
    room: Annotated[int, Size(1)] = 1
    on: bool = False
    parts: list[Part] = []


WRONG = {
    "name: x\nsize: 3": "f.yaml:2: a test has no key 'size' (it has name, count,",
    "count: 3": "f.yaml:1: a test needs 'name'",
    "name: 5": "f.yaml:1: name must be text, not 5",
    "name: x\ncount: 0": "f.yaml:2: count must be from 1 to 9, not 0",
    "name: x\ncount: true": "f.yaml:2: count must be a whole number, not True",
    "name: x\nkind: c": "f.yaml:2: kind must be a or b, not 'c'",
    "name: x\nspeed: 5 s": "f.yaml:2: speed must be a rate such as",
    "name: x\nspeed: 5 bit/s": "f.yaml:2: speed must be from 1 Mbit/s to 100 Gbit/s, not '5 bit/s'",
    "name: x\nwait: 2 h": "f.yaml:2: wait must be from 1 ms to 3600 s, not '2 h'",
    "name: x\nroom: 0": "f.yaml:2: room must be from 1 bytes",
    "name: x\nroom: " + "'" + "9" * 400 + " GB'": "f.yaml:2: room must be a size such as",
    "name: x\non: 1": "f.yaml:2: on must be true or false, not 1",
    "name: x\nparts: 1": "f.yaml:2: parts must be a list, not 1",
    "name: x\nparts:\n- {name: y}\n- {nam: z}": "f.yaml:4: parts[1] has no key 'nam' (it has name, share)",
    "name: x\nparts:\n- {}": "f.yaml:3: parts[0] needs 'name'",
    "name: x\nparts: [1]": "f.yaml:2: parts[0] must be a mapping",
    "name: x\nparts:\n- name: y\n  share: .inf": "f.yaml:4: parts[0].share must be from 0 to 1",
    "name: x\nparts:\n- name: y\n  share: .nan": "f.yaml:4: parts[0].share must be from 0 to 1",
    "count: 0\nname: 1": "f.yaml:1: count must",  # the first of the two lines
}


@pytest.mark.parametrize("text", WRONG)
def test_a_model_refuses_with_file_line_and_key(text: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(Whole, read_yaml(text, "f.yaml"))
    assert str(caught.value).startswith(WRONG[text])


def test_a_model_takes_quantities_as_written() -> None:
    text = "name: x\nspeed: 2 Gbit/s\nwait: 1.5 ms\nroom: 64 KiB\nparts: [{name: y, share: 1}]"
    whole = validated(Whole, read_yaml(text, "f.yaml"))
    assert (whole.speed, whole.wait, whole.room) == (2 * 10**9, 1_500_000, 65536)
    assert whole.parts == [Part(name="y", share=1.0)]


def test_the_schema_has_bounds_and_patterns() -> None:
    properties = Whole.model_json_schema()["properties"]
    assert properties["count"] | {"default": 0, "title": ""} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "default": 0,
        "title": "",
    }
    assert "pattern" in properties["speed"]
