"""Pages about the whole project: every glossary term is used, and the architecture's modules exist."""

import re
import subprocess

import pytest

from tests.support.paths import ROOT

GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
PAGES = [path for path in ROOT.glob("docs/*.md") if path.name not in ("index.md", "gallery.md")]
"""All pages except the pages that only the documentation site has."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\*\*(.+?)\*\*: (.+) \*(.+)\*$", GLOSSARY, re.MULTILINE)
WORDS = {
    "backup EV": "backup",
    "congestion window": "congestion window|cwnd",
    "go-back-N": "go.back.n",
    "probe timeout": "probe.timeout",
    "reordering window": "reordering.window",
}
"""Terms that the text uses in another form, with a regular expression for that form."""


@pytest.fixture(scope="module")
def texts() -> str:
    """Return the text of all pages except the glossary, and of all code except the tests."""
    paths = [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
    for room in (
        "p4src",
        "topologies",
        "switches",
        "controller",
        "hosts",
        "testbed",
        "experiments",
        "scale",
        "mrclab",
    ):
        paths += [path for kind in ("*.py", "*.p4") for path in (ROOT / room).rglob(kind)]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.name != "glossary.md")


def test_terms_are_in_order_once_with_a_meaning_and_a_source() -> None:
    names = [name.casefold() for name, _, _ in TERMS]
    assert len(names) == GLOSSARY.count("\n**")
    assert names == sorted(set(names))
    assert all(meaning.endswith(".") and source.endswith(".") for _, meaning, source in TERMS)


@pytest.mark.parametrize("term", [name for name, _, _ in TERMS])
def test_a_term_of_the_glossary_is_used(term: str, texts: str) -> None:
    assert re.search(rf"(?<![a-z])({WORDS.get(term, re.escape(term))})", texts, re.IGNORECASE)


def test_the_readme_leads_to_both_pages() -> None:
    assert "docs/glossary.md" in README
    assert "docs/architecture.md" in README


def test_every_page_of_docs_is_named_in_the_readme() -> None:
    assert [path.name for path in PAGES if f"docs/{path.name}" not in README] == []


def test_what_the_architecture_names_is_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = (ROOT / "docs/img/architecture.svg").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_.]+)*/?)`", page)) | set(
        re.findall(r">([a-z0-9_]+/[a-z0-9_./]*)<", drawing)
    )
    assert len(named) > 20
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    assert tracked or not (ROOT / ".git").exists()
    assert [name for name in named if "/" in name and not (ROOT / name).exists()] == []
