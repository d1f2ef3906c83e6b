"""Rates that only virtual time can have."""

import pytest

from mrclab.linux.errors import InputError
from mrclab.testbed.network import refuse_too_fast
from mrclab.topologies import build_fabric, load_fabric

FAST = "{name: fast, planes: 1, t0: 2, t1: 1, hosts: 2, links: {fabric: {rate: 400 Gbit/s}}}"


def test_a_link_faster_than_the_kernel_shapes_is_refused_in_one_line() -> None:
    refuse_too_fast(load_fabric("paper-c"))
    with pytest.raises(InputError, match=r"link p0-t0-0:p0-t1-0 has 400 Gbit/s: use --target sim"):
        refuse_too_fast(build_fabric(FAST, "fast"))
