"""An interface can be a port of only one switch server at a time."""

from __future__ import annotations

import pytest

from mrclab.linux.errors import BadInputError
from mrclab.switches.ebpf.runtime.interfaces import Claims


def test_a_second_claim_is_refused_and_free_again_after_the_first() -> None:
    """A second server must not take over the interfaces of the first server."""
    with Claims(["lo"]):
        with pytest.raises(BadInputError, match="interface lo is a port of another simple_switch_ebpf"):
            Claims(["lo"])
        with Claims([]):
            pass
    with Claims(["lo"]):
        pass


def test_what_was_claimed_before_a_refusal_is_given_up() -> None:
    with pytest.raises(BadInputError):
        Claims(["lo", "lo"])
    with Claims(["lo"]):
        pass
