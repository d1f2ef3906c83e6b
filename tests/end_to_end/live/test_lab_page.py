"""Labs in the page of `make site`, in a real browser: a skeleton gets hints, and a solution passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mrclab.labs.catalogue import find, part_of
from mrclab.play.desk import shown, skeletons
from tests.support.browser import chromium
from tests.support.site import pictures, served, view

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SKELETONS = {lab["number"]: lab for lab in skeletons()}
QUICK = (1, 8)
SLOW = (4, 5, 6)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def checked(page: Page) -> tuple[list[str], list[str], str]:
    """Press the check button. Return the titles of passed and of failed checks, and the summary."""
    page.click("#check")
    page.wait_for_function("!document.getElementById('check').disabled")
    passed, failed = page.locator("#outcomes .passed"), page.locator("#outcomes .failed")
    assert all("\n" in text for text in failed.all_inner_texts()), "each has a hint"
    return passed.all_inner_texts(), failed.all_inner_texts(), page.inner_text("#state")


def done_in_the_page(browser: Browser, address: str, number: int) -> None:
    lab = SKELETONS[number]
    solution = part_of(find(str(number)), "solution")
    with view(browser, f"{address}lab.html#{number}") as page:
        page.locator("#files [role=tab]").first.wait_for()
        _, failed, words = checked(page)
        assert failed, words
        for name in lab["handed_in"]:
            if (solution / name).exists():
                page.get_by_role("tab", name=name).click()
                page.fill("#editor", shown(solution / name))
        passed, failed, words = checked(page)
        assert failed == [], words
        assert words.startswith(f"All {len(passed)} checks pass")
        assert ("not tried here" in words) == (number == 6)
        pictures(page, f"lab-{number}")


@pytest.mark.parametrize("number", QUICK)
def test_a_lab_is_done_in_the_page(browser: Browser, address: str, number: int) -> None:
    done_in_the_page(browser, address, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", SLOW)
def test_a_longer_lab_is_done_in_the_page(browser: Browser, address: str, number: int) -> None:
    done_in_the_page(browser, address, number)
