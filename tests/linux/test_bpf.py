"""Loading programs into the kernel."""

import errno
import os
from typing import Any

import pytest

from mrclab.linux import bpf
from mrclab.linux.bpf import RefusedError, load_program


def interrupted(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let a signal interrupt the verifier ``times`` times. Return all attempts to load a program."""
    loads: list[int] = []

    def call(command: int, attr: Any) -> int:
        loads.append(command)
        if len(loads) <= times:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 7

    monkeypatch.setattr(bpf, "_bpf", call)
    return loads


def test_a_program_is_loaded_again_when_a_signal_interrupts_the_verifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = interrupted(monkeypatch, times=3)
    assert load_program(bytes(16), "any") == 7
    assert len(loads) == 4


def test_a_verifier_that_never_ends_its_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, times=100)
    with pytest.raises(RefusedError, match="Resource temporarily unavailable"):
        load_program(bytes(16), "any")
