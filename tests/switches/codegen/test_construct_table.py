"""The table of constructs in docs/ebpf-target.md: each row names a test of the construct, or a refusal."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.switch_kit import ROOT

_, _, REST = (ROOT / "docs/ebpf-target.md").read_text().partition("| construct |")
TABLE = REST.partition("\n\n")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]


def functions(name: str) -> set[str]:
    (path,) = (ROOT / "tests").rglob(name)
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_every_construct_is_supported_with_its_test_or_refused_with_its_message() -> None:
    sources = "".join(p.read_text() for p in (ROOT / "switches").rglob("*.py"))
    assert len(ROWS) > 20
    for construct, here, proof in ROWS:
        (text,) = re.findall(r"`(.+)`", proof)
        if here.startswith("yes"):
            name, _, function = text.partition("::")
            assert function in functions(name), construct
        else:
            assert here.startswith("refused"), construct
            assert text in sources, construct
