"""Read YAML text as plain data, with the line of each key, so that error messages can name the line.

The text may come from an untrusted source. So its size, depth and aliases are limited, and only plain values
are allowed: mappings with text keys, lists, text, numbers, true, false and null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from mrclab.linux.errors import InputError

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 50
MAX_NODES = 100_000
"""The largest number of values in a document. A value that aliases repeat counts each time."""
MAX_DIGITS = 40

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys and list positions, such as ``("hosts", 0, "rack")``."""

_PLAIN = "tag:yaml.org,2002:"
_TEXT_TAGS = tuple(_PLAIN + tag for tag in ("str", "timestamp", "merge", "value"))
_SCALAR_TAGS = tuple(_PLAIN + tag for tag in ("int", "float", "bool", "null"))


@dataclass(frozen=True, slots=True)
class Place:
    """The source of a value: a file and a line in it, or an option of the command line."""

    where: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A document whose top level is a mapping. ``places`` has the place of each key and list item."""

    data: dict[str, Any]
    where: str
    places: Mapping[KeyPath, Place]

    def place(self, path: KeyPath = ()) -> Place:
        """Return the place of a key. If there is no such key, return the place of the key that contains it.

        Parts of ``path`` that are no keys of the document are skipped, because pydantic adds the names of
        union members to its paths.
        """
        return self.places.get(self.known(path), Place(self.where))

    def known(self, path: KeyPath) -> KeyPath:
        """Return the path without parts that are no keys of the document."""
        found: KeyPath = ()
        for part in path:
            if (*found, part) in self.places:
                found = (*found, part)
        return found

    def error(self, message: str, path: KeyPath = ()) -> InputError:
        """Return an error with this message and with the place of a key."""
        place = self.place(path)
        return InputError(message, where=place.where, line=place.line)

    def with_value(self, path: KeyPath, value: Any, where: str) -> YamlDocument:
        """Return the document with another value at ``path``. The value's source is ``where``.

        Missing mappings on the path are added. Raise InputError if a part of the path is no mapping or list.
        """
        data = _copied(self.data)
        places = {known: place for known, place in self.places.items() if known[: len(path)] != path}
        at: Any = data
        for depth, part in enumerate(path[:-1]):
            fits = isinstance(at, dict) if isinstance(part, str) else isinstance(at, list) and part < len(at)
            if not fits:
                raise InputError(f"{dotted(path[:depth])} has no '{part}'", where=where)
            if isinstance(at, dict) and part not in at:
                at[part] = {}
            places.setdefault(path[: depth + 1], Place(where))
            at = at[part]
        if not isinstance(at, dict) and not (isinstance(at, list) and path[-1] in range(len(at))):
            raise InputError(f"{dotted(path[:-1])} has no '{path[-1]}'", where=where)
        holder: Any = at
        holder[path[-1]] = value
        _add_places(value, path, Place(where), places)
        return replace(self, data=data, places=places)


def dotted(path: KeyPath) -> str:
    """Return a path as text, such as ``hosts[0].rack``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the file"


def read_yaml(text: str, where: str) -> YamlDocument:
    """Return the data of a YAML text and the line of each key. ``where`` is the text's name in errors.

    Raise InputError if the text is not YAML, is empty, is too large or is nested too deeply. Also raise
    InputError if the top level is no mapping, a key is repeated, or a scalar is no text, number, bool, null.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"larger than {MAX_CHARACTERS >> 20} MiB", where=where)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(f"not YAML: {error.problem}", where=where, line=line) from None
    except (yaml.YAMLError, ValueError) as error:  # an error without a line, such as a control character
        raise InputError(f"not YAML: {(str(error) or 'broken').splitlines()[0]}", where=where) from None
    if root is None:
        raise InputError("the file is empty", where=where)
    if not isinstance(root, yaml.MappingNode):
        raise InputError("the file must be a mapping (key: value)", where=where, line=_line(root))
    return _Reader(where).document(root)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with a limit on depth, because Python limits the depth of recursion."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


class _Reader:
    """Turn PyYAML's nodes into plain data, and record the place of each value."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._places: dict[KeyPath, Place] = {}
        self._count = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def document(self, root: yaml.MappingNode) -> YamlDocument:
        self._places[()] = Place(self._where, _line(root))
        return YamlDocument(self._value(root, (), ()), self._where, self._places)

    def _error(self, message: str, node: yaml.Node, path: KeyPath) -> InputError:
        at = f"{dotted(path)}: " if path else ""
        return InputError(f"{at}{message}", where=self._where, line=_line(node))

    def _value(self, node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise self._error(f"more than {MAX_NODES} values (aliases count each time)", node, path)
        if any(node is other for other in above):
            raise self._error("an alias refers to what contains it", node, path)
        if len(above) >= MAX_DEPTH:  # aliases can nest the data deeper than the text
            raise self._error(f"nested deeper than {MAX_DEPTH}", node, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode) and node.tag == _PLAIN + "map":
            return self._mapping(node, path, (*above, node))
        if isinstance(node, yaml.SequenceNode) and node.tag == _PLAIN + "seq":
            items = []
            for number, item in enumerate(node.value):
                self._places[(*path, number)] = Place(self._where, _line(item))
                items.append(self._value(item, (*path, number), (*above, node)))
            return items
        raise self._error(f"the tag {node.tag.replace(_PLAIN, '!!')} is not allowed", node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error("a key must be a word", key_node, path)
            key = self._text(key_node, path)
            if key in entries:
                raise self._error(f"'{key}' is given twice", key_node, path)
            self._places[(*path, key)] = Place(self._where, _line(key_node))
            entries[key] = self._value(value_node, (*path, key), above)
        return entries

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        """Return the text of a node. Raise InputError if files or file names could not contain this text.

        Escapes can produce such text: half of a UTF-16 pair, or a zero character.
        """
        text = str(node.value)
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
            raise self._error(f"{text!a} has a character that no file can have", node, path)
        return text

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if node.tag in _TEXT_TAGS:
            return self._text(node, path)
        if node.tag not in _SCALAR_TAGS:
            raise self._error(f"the tag {node.tag.replace(_PLAIN, '!!')} is not allowed", node, path)
        if len(node.value) > MAX_DIGITS:
            raise self._error(f"a number of more than {MAX_DIGITS} digits", node, path)
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, TypeError):
            kind = node.tag.removeprefix(_PLAIN)
            raise self._error(f"'{node.value}' is no value of the type {kind}", node, path) from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _add_places(value: Any, path: KeyPath, place: Place, places: dict[KeyPath, Place]) -> None:
    places[path] = place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _add_places(item, (*path, key), place, places)
