"""Just enough of JSON Schema (draft 2020-12) to hold result.json to its schema.

A keyword that is not known here is an error, so that the schema cannot ask for something that nobody checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_SAYS_NOTHING = {"$schema", "$id", "$defs", "title", "description"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def violations(
    value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, at: str = "$"
) -> Iterator[str]:
    """Where and how a value breaks its schema."""
    root = schema if root is None else root
    for keyword, rule in schema.items():
        if keyword in _SAYS_NOTHING:
            continue
        if keyword == "$ref":
            yield from violations(value, root["$defs"][rule.removeprefix("#/$defs/")], root, at)
        elif keyword == "type":
            names = [rule] if isinstance(rule, str) else rule
            if not any(_is(value, name) for name in names):
                yield f"{at} is {value!r}, not {' or '.join(names)}"
        elif keyword == "const":
            if value != rule:
                yield f"{at} is {value!r}, not {rule!r}"
        elif keyword == "enum":
            if value not in rule:
                yield f"{at} is {value!r}, not one of {rule}"
        elif keyword == "minimum":
            if isinstance(value, (int, float)) and value < rule:
                yield f"{at} is {value}, less than {rule}"
        elif keyword == "required":
            yield from (f"{at} lacks {key}" for key in rule if isinstance(value, dict) and key not in value)
        elif keyword == "properties":
            for key, part in rule.items():
                if isinstance(value, dict) and key in value:
                    yield from violations(value[key], part, root, f"{at}.{key}")
        elif keyword == "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                yield from violations(item, rule, root, f"{at}[{i}]")
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < rule:
                yield f"{at} has fewer than {rule} items"
        elif keyword == "maxItems":
            if isinstance(value, list) and len(value) > rule:
                yield f"{at} has more than {rule} items"
        else:
            raise NotImplementedError(f"{at}: keyword {keyword}")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
