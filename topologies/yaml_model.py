"""The base class and types of pydantic models that read YAML. Errors name the file, the line and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from mrclab.linux.errors import InputError
from mrclab.topologies.units import (
    RATE_PATTERN,
    SIZE_PATTERN,
    TIME_PATTERN,
    rate_bps,
    shown,
    size_bytes,
    time_ns,
)
from mrclab.topologies.yaml_lines import KeyPath, YamlDocument, dotted

Model = TypeVar("Model", bound="YamlModel")

_UNKNOWN, _MISSING, _NO_MAPPING, _WRONG = "unknown_key", "missing_key", "no_mapping", "wrong"


def wrong(message: str, *keys: str | int) -> PydanticCustomError:
    """Return the error of a model's check. ``keys`` is the path from the model to the wrong value."""
    return PydanticCustomError(_WRONG, "{text}", {"text": message, "below": keys})


class YamlModel(BaseModel):
    """A mapping in a YAML file. Unknown keys are refused, and values of another type are not converted.

    ``what`` is the name of the whole document in error messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    what: ClassVar[str] = "the file"

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        """Refuse unknown and missing keys, with clearer messages than pydantic's messages."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise PydanticCustomError(_NO_MAPPING, "must be a mapping (key: value)")
        keys = {field.alias or name: field for name, field in cls.model_fields.items()}
        for key in data:
            if key not in keys:
                context = {"key": str(key), "keys": ", ".join(keys), "what": cls.what}
                raise PydanticCustomError(_UNKNOWN, "unknown key", context)
        for key, field in keys.items():
            if field.is_required() and key not in data:
                raise PydanticCustomError(_MISSING, "missing key", {"key": key, "what": cls.what})
        return data


def validated(model: type[Model], document: YamlDocument) -> Model:
    """Return a document as a model.

    Raise InputError with file, line and key if the document does not fit the model.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise _input_error(document, error) from None


def _input_error(document: YamlDocument, error: ValidationError) -> InputError:
    """Return the first error in the document. If one key has several errors, return the innermost error."""

    def order(details: ErrorDetails) -> tuple[int, int]:
        path = document.known(_loc(details))
        return document.place(path[:1]).line or 0, -len(path)

    details = min(error.errors(include_url=False), key=order)
    path = document.known(_loc(details))
    context = details.get("ctx", {})
    if details["type"] == _UNKNOWN:
        part = dotted(path) if path else context["what"]
        message = f"{part} has no key '{context['key']}' (it has {context['keys']})"
        return document.error(message, (*path, context["key"]))
    if details["type"] == _MISSING:
        return document.error(f"{dotted(path) if path else context['what']} needs '{context['key']}'", path)
    message = _message(details)
    if not path:
        return document.error(message)
    joint = " " if message.startswith(("must ", "needs ", "is ")) else ": "
    return document.error(f"{dotted(path)}{joint}{message}", path)


def _loc(details: ErrorDetails) -> KeyPath:
    return (*details["loc"], *details.get("ctx", {}).get("below", ()))


_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "none_required": "empty",
}


def _message(details: ErrorDetails) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        return f"needs a kind ({context['expected_tags'].replace(chr(39), '')}), not {shown(context['tag'])}"
    if kind == "union_tag_not_found":
        return "needs 'kind'"
    if kind == "too_short":
        return "is empty" if context["min_length"] == 1 else f"needs at least {context['min_length']} entries"
    if kind in _TYPES:
        quoted = "" if isinstance(value, dict | list) else f", not {shown(value)}"
        return f"must be {_TYPES[kind]}{quoted}"
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected'].replace(chr(39), '')}, not {shown(value)}"
    message = details["msg"]
    return message if message[:2].isupper() else message[:1].lower() + message[1:]


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Annotation for a whole number in [low, high], such as ``Annotated[int, WholeNumber(0, 7)]``."""

    low: int
    high: int = 2**63 - 1

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low} | _maximum(self.high)

    def _check(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {shown(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"must be from {self.low} to {self.high}, not {shown(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """Annotation for a number in [low, high], such as ``Annotated[float, Number(0, 1)]``."""

    low: float
    high: float = 2**63 - 1

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"type": "number", "minimum": self.low} | _maximum(self.high)

    def _check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, not {shown(value)}")
        if not self.low <= value <= self.high:
            raise ValueError(f"must be from {self.low} to {self.high}, not {shown(value)}")
        return float(value)


@dataclass(frozen=True, slots=True)
class _Quantity:
    low: int = 0
    high: int = 2**63 - 1

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def _check(self, value: Any) -> int:
        found = self._parse(value)
        if not self.low <= found <= self.high:
            raise ValueError(f"must be from {self._text(self.low)} to {self._text(self.high)}, not '{value}'")
        return found

    def _parse(self, value: Any) -> int:
        raise NotImplementedError

    def _text(self, value: int) -> str:
        raise NotImplementedError


class Rate(_Quantity):
    """Annotation for a rate in [low, high] bits per second, which is text such as ``200 Mbit/s``."""

    __slots__ = ()

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": RATE_PATTERN}

    def _parse(self, value: Any) -> int:
        return rate_bps(value)

    def _text(self, value: int) -> str:
        return f"{value / 1e9:g} Gbit/s" if value >= 10**9 else f"{value / 1e6:g} Mbit/s"


@dataclass(frozen=True, slots=True)
class Time(_Quantity):
    """Annotation for a time in [low, high] nanoseconds, which is text such as ``150 us``, or 0."""

    high: int = 3600 * 10**9

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"const": 0}, {"type": "string", "pattern": TIME_PATTERN}]}

    def _parse(self, value: Any) -> int:
        return time_ns(value)

    def _text(self, value: int) -> str:
        return f"{value / 1e6:g} ms" if value < 10**9 else f"{value / 1e9:g} s"


class Size(_Quantity):
    """Annotation for a size in [low, high] bytes: text such as ``64 KiB``, or a whole number."""

    __slots__ = ()

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}

    def _parse(self, value: Any) -> int:
        return size_bytes(value)

    def _text(self, value: int) -> str:
        return f"{value:g} bytes"


def _maximum(high: float) -> dict[str, float]:
    return {"maximum": high} if high < 2**63 - 1 else {}
