"""Signals that end a program are raised, deferred or passed on. No signal is lost or doubled."""

from __future__ import annotations

import signal

import pytest

from mrclab.linux.life import signals

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _defaults() -> None:
    """Set the handlers with which a program starts."""
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_an_exception_with_a_shells_exit_code(number: signal.Signals) -> None:
    with pytest.raises(signals.Ended) as ended, signals.as_exceptions():
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert str(ended.value) == f"ended by {number.name}"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.as_exceptions(), signals.deferred():
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_a_deferred_signal_comes_once_at_the_end(number: signal.Signals) -> None:
    done = []
    with pytest.raises((signals.Ended, KeyboardInterrupt)), signals.as_exceptions():  # noqa: PT012
        with signals.deferred():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append("all")
        done.append("more")
    assert done == ["all"]


def test_while_a_program_ends_by_a_signal_later_ones_are_dropped() -> None:
    done = []
    with pytest.raises(signals.Ended) as ended, signals.as_exceptions():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            with signals.deferred():
                for number in signals.SIGNALS:
                    signal.raise_signal(number)
                done.append("all")
            done.append("more")
    assert done == ["all", "more"]
    assert ended.value.number == signal.SIGTERM


def test_a_signal_that_is_passed_on_does_not_end_the_program() -> None:
    passed = []
    with signals.as_exceptions(), signals.passed_on(lambda: passed.append(1)):
        for number in signals.SIGNALS:
            signal.raise_signal(number)
    assert passed == [1, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_only_the_first_signal_ends_what_saves_its_work(number: signal.Signals) -> None:
    """A second signal, microseconds later, must not interrupt the saving."""
    saved = []
    with pytest.raises((signals.Ended, KeyboardInterrupt)), signals.first_only():  # noqa: PT012
        try:
            signal.raise_signal(number)
        finally:
            for later in signals.SIGNALS:
                signal.raise_signal(later)
            saved.append("all")
    assert saved == ["all"]


def test_what_is_to_be_done_at_once_is_done_once_and_before_the_exception() -> None:
    done: list[str] = []
    with pytest.raises(signals.Ended), signals.first_only(lambda: done.append("at once")):  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert done == ["at once"]
            signal.raise_signal(signal.SIGTERM)
    assert done == ["at once"]
