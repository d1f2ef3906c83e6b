"""MkDocs hook: add pages from outside docs/, and turn paths in the text into links.

Adds the notebooks, the labs' pages and slides, CONTRIBUTING.md and CHANGELOG.md to the site. A path in
backquotes, such as `docs/live.md`, becomes a link to the page. The text has no such links itself, because
people also read it in a checkout.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
from notebook_pages import page_of  # noqa: E402
from slides import decks  # noqa: E402

SLIDES = "labs/slides"
NAMED = re.compile(r"(?<!\[)`((?:docs|labs)/[\w./-]*\.md|CONTRIBUTING\.md|CHANGELOG\.md|README\.md)`(?!\])")
ELSEWHERE = re.compile(r'<script src="https?://[^"]*"></script>')
"""A script from another server. Material's plugin `offline` adds one for the search in pages on disk."""
OUTSIDE = re.compile(r"(\]\()\.\./(labs/[\w./-]*\.md)(\))")


def site_pages() -> dict[str, Path]:
    """Return the pages from outside docs/: the source file by the path in the site."""
    pages = {
        "contributing.md": ROOT / "CONTRIBUTING.md",
        "changelog.md": ROOT / "CHANGELOG.md",
        "labs/index.md": ROOT / "labs" / "README.md",
    }
    for page in sorted((ROOT / "labs").glob("[0-9]*/README.md")):
        pages[f"labs/{page.parent.name}.md"] = page
    return pages


def site_path(path: str) -> str | None:
    """Return the path in the site for a path in the checkout, or None if the site does not have the file."""
    target = ROOT / path
    for name, source in site_pages().items():
        if source == target:
            return name
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/") and target.is_file():
        return path.removeprefix("docs/")
    return None


def relative(target: str, page: str) -> str:
    """Return the link from one page of the site to another."""
    up = len(PurePosixPath(page).parts) - 1
    return "../" * up + target


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for name, source in site_pages().items():
        files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))
    for figure in sorted((ROOT / "labs").glob("[0-9]*/*.svg")):
        name = f"labs/{figure.name}"
        files.append(File.generated(config, name, content=figure.read_text(encoding="utf-8")))
    for lab, deck in decks().items():
        files.append(File.generated(config, f"{SLIDES}/{lab}.html", content=deck))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = page_of(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn paths of pages in a page's text into links."""
    here = page.file.src_uri
    lab = PurePosixPath(here).stem
    if here.startswith("labs/") and (ROOT / "labs" / lab / "slides.md").is_file():
        heading, _, rest = markdown.partition("\n")
        markdown = f"{heading}\n\n[Slides](slides/{lab}.html)\n{rest}"

    def link(match: re.Match[str]) -> str:
        target = site_path(match[1])
        return match[0] if target is None else f"[`{match[1]}`]({relative(target, here)})"

    def outside(match: re.Match[str]) -> str:
        target = site_path(match[2])
        return match[0] if target is None else f"{match[1]}{relative(target, here)}{match[3]}"

    return OUTSIDE.sub(outside, NAMED.sub(link, markdown))


def on_post_page(output: str, **_: Any) -> str:
    """Remove scripts from other servers, which would cause errors in the console without a network."""
    return ELSEWHERE.sub("", output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Remove scripts from other servers in pages that the theme makes, such as 404.html."""
    return ELSEWHERE.sub("", output_content)
