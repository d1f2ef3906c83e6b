"""The pages that `make site` builds, as files."""

import re

import pytest

from tests.support.site import SITE

FETCHED = re.compile(
    r'<(?:script|img|source|iframe)[^>]*\bsrc="https?://|<link[^>]*\brel="stylesheet"[^>]*"https?://'
)


def test_no_page_fetches_anything_from_another_server() -> None:
    pages = sorted(SITE.rglob("*.html"))
    if not pages:
        pytest.skip("'make site' was not run")
    assert [str(page.relative_to(SITE)) for page in pages if FETCHED.search(page.read_text("utf-8"))] == []
