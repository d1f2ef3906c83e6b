"""Wrong changes of the code, made in its syntax tree.

A change names a function, method, class or constant, and an expression or statement in it. It names no file
and no line, so it still fits after code was moved, formatted or extended.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

ROOMS = ("controller", "hosts", "topologies")
"""The folders whose code can be changed."""
_NOT_COMPARED = ("ctx", "kind", "type_comment")


@dataclass(frozen=True)
class Place:
    """A definition: its module, and its qualified name there, such as ``Requester.on_ack``."""

    path: Path
    name: str


class Sources:
    """The modules of a source tree, and the names that they define."""

    def __init__(self, root: Path) -> None:
        self._places: dict[str, list[Place]] = {}
        for path in (path for room in ROOMS for path in sorted((root / room).rglob("*.py"))):
            for name, _ in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
                self._places.setdefault(name, []).append(Place(path, name))

    def find(self, name: str) -> Place:
        """Return the definition with a qualified name. Raise ValueError unless exactly one module has it.

        If several modules have it, write a folder or module before the name: ``mrc.Requester.on_ack``.
        """
        parts = name.split(".")
        found = [
            place
            for at in range(len(parts))
            for place in self._places.get(".".join(parts[at:]), ())
            if set(parts[:at]) <= set(place.path.with_suffix("").parts)
        ]
        if len(found) != 1:
            raise ValueError(f"{len(found)} modules define {name}: {[str(place.path) for place in found]}")
        return found[0]


def replace(source: str, name: str, old: str, new: str) -> str:
    """Return the source of a module with a part of one definition replaced.

    `old` is an expression or one statement. In `old`, ``...`` stands for any expression, or for all arguments
    of a call. If `old` occurs several times, the occurrence that is a condition is replaced.

    Raise ValueError if `old` does not occur, or if the occurrence to replace is unclear.
    """
    module = ast.parse(source)
    scope = dict(_definitions(module))[name]
    before, after = ast.parse(old).body, ast.parse(new).body
    pattern: ast.AST = before[0]
    put: ast.expr | list[ast.stmt] = after
    if len(before) == len(after) == 1 and isinstance(pattern, ast.Expr) and isinstance(after[0], ast.Expr):
        pattern, put = pattern.value, after[0].value
    found = [node for node in ast.walk(scope) if fits(pattern, node)]
    if len(found) > 1:
        conditions = list(_conditions(scope))
        found = [node for node in found if node in conditions] or found
    if len(before) != 1 or len(found) != 1:
        raise ValueError(f"{old!r} occurs {len(found)} times in {name}")
    _Replacement(found[0], put).visit(scope)
    return ast.unparse(ast.fix_missing_locations(module))


def set_value(source: str, name: str, value: str) -> str:
    """Return the source of a module with another value of a constant or attribute.

    In `value`, the name of the constant stands for its old value.
    """
    module = ast.parse(source)
    statement = dict(_definitions(module))[name]
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        raise ValueError(f"{name} is no constant or attribute with a value")
    new: ast.AST = ast.parse(value, mode="eval").body
    own = name.rpartition(".")[2]
    for node in [node for node in ast.walk(new) if isinstance(node, ast.Name) and node.id == own]:
        new = _Replacement(node, statement.value).visit(new)
    statement.value = cast("ast.expr", new)
    return ast.unparse(ast.fix_missing_locations(module))


def fits(pattern: ast.AST, node: ast.AST) -> bool:
    """Return whether a node has the form of a pattern; see `replace` for ``...``."""
    if _is_any(pattern):
        return isinstance(node, ast.expr)
    if type(pattern) is not type(node):
        return False
    compared = [name for name in pattern._fields if name not in _NOT_COMPARED]
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _is_any(pattern.args[0]):
        compared = ["func"]
    return all(_same(getattr(pattern, name, None), getattr(node, name, None)) for name in compared)


def _is_any(pattern: ast.AST) -> bool:
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def _same(pattern: object, found: object) -> bool:
    if isinstance(pattern, list) and isinstance(found, list):
        return len(pattern) == len(found) and all(map(_same, pattern, found))
    if isinstance(pattern, ast.AST) and isinstance(found, ast.AST):
        return fits(pattern, found)
    return type(pattern) is type(found) and pattern == found


def _definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield the qualified name and the statement of each definition in a module or class."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield prefix + statement.name, statement
        if isinstance(statement, ast.ClassDef):
            yield from _definitions(statement, f"{prefix}{statement.name}.")
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((prefix + target.id, statement) for target in targets if isinstance(target, ast.Name))


def _conditions(scope: ast.stmt) -> Iterator[ast.expr]:
    """Yield the conditions of all branches and loops, and the parts that `and`, `or` and `not` join."""
    for node in ast.walk(scope):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield from _parts(node.test)


def _parts(condition: ast.expr) -> Iterator[ast.expr]:
    yield condition
    if isinstance(condition, ast.BoolOp):
        for value in condition.values:
            yield from _parts(value)
    if isinstance(condition, ast.UnaryOp):
        yield from _parts(condition.operand)


class _Replacement(ast.NodeTransformer):
    """Replace one node by an expression or by statements."""

    def __init__(self, node: ast.AST, new: ast.expr | list[ast.stmt]) -> None:
        self._node, self._new = node, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._node else self.generic_visit(node)
