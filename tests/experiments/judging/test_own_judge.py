"""A scenario can name a judge outside of the source tree: ``figure: "module:judge"``."""

from pathlib import Path

import pytest

from mrclab.experiments.judging.judge import judge
from mrclab.experiments.spec.claim import require_figure
from mrclab.linux.errors import InputError
from tests.experiments.figures.test_judges import cases

MODULE = """
from mrclab.experiments.judging.criteria import present
from mrclab.experiments.judging.verdict import Verdict

NUMBER = 4


def judge(result):
    return Verdict((present("transports", len(result["transports"]), "a test"),), paper="of our own")


def broken(result):
    return result["no such key"]


def careless(result):
    return True
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_claim.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_it_judges_the_result_beside_the_common_checks() -> None:
    verdict = judge("own_claim:judge", cases("latency").good)
    assert verdict["holds"] is True
    assert verdict["paper"] == "of our own"
    assert [check["asked"] for check in verdict["checks"]][-1].endswith("transports")


@pytest.mark.parametrize(
    ("name", "found"),
    [("own_claim:broken", "KeyError"), ("own_claim:careless", "it returned bool")],
)
def test_one_that_fails_leaves_the_claim_open_and_says_why(name: str, found: str) -> None:
    verdict = judge(name, cases("latency").good)
    assert verdict["holds"] is None
    assert found in verdict["because"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_claim:nothing", "figure: own_claim has no nothing"),
        ("nowhere:judge", "figure: cannot import nowhere for 'nowhere:judge'"),
        ("own_claim:NUMBER", "figure: own_claim:NUMBER is no function"),
        ("own_claim", "figure: there is no 'own_claim' in experiments/figures"),
    ],
)
def test_a_mistake_is_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        require_figure(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
