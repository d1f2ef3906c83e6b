"""An experiment's names stay reserved between two of its fabrics, and are free after the experiment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.linux.errors import InputError
from mrclab.linux.processes import environment
from mrclab.testbed.names import Names
from mrclab.testbed.ownership import CLAIM_VARIABLE, claimed, holders, refuse_claimed, take_claimed

HOLDER = """
import sys
from mrclab.testbed.ownership import claimed
from mrclab.testbed.names import Names
with claimed(Names.of_prefix(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
ASKER = """
import sys
from mrclab.testbed.ownership import refuse_claimed
from mrclab.testbed.names import Names
refuse_claimed(Names.of_prefix(sys.argv[1]))
"""


@pytest.fixture
def free(tmp_path: Path) -> Names:
    return Names(f"t{os.urandom(4).hex()}", tmp_path)


def test_everybody_can_see_which_names_are_held(free: Names, tmp_path: Path) -> None:
    with claimed(free):
        assert free.prefix in holders()
    assert free.prefix not in holders()
    assert holders(tmp_path / "nothing") == []


def test_the_holder_and_who_works_for_it_may_use_the_names(free: Names) -> None:
    with claimed(free):
        refuse_claimed(free)
        command = [sys.executable, "-c", ASKER, free.prefix]
        assert subprocess.run(command, env=environment(), check=False).returncode == 0
    assert CLAIM_VARIABLE not in os.environ
    refuse_claimed(free)


def test_others_are_refused_until_its_end_however_it_ends(
    free: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", HOLDER, free.prefix]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said = rf"^an experiment holds the testbed, '.*' \(process {holder.pid}\): wait [^\n]*--force'$"
        with pytest.raises(InputError, match=said):
            refuse_claimed(free)
        with pytest.raises(InputError, match=said), claimed(free):
            pass
        monkeypatch.setenv(CLAIM_VARIABLE, "1")  # the claim of another experiment
        with pytest.raises(InputError, match=said):
            refuse_claimed(free)
        take_claimed(free)
        refuse_claimed(free)
        holder.kill()
    refuse_claimed(free)
    with claimed(free):
        pass
