"""Rates that are possible only in virtual time."""

import pytest

from mrclab.linux.errors import InputError
from mrclab.testbed.network import refuse_long_names, refuse_too_fast
from mrclab.topologies import build_fabric, load_fabric

FAST = "{name: fast, planes: 1, t0: 2, t1: 1, hosts: 2, links: {fabric: {rate: 400 Gbit/s}}}"


def test_a_link_faster_than_the_kernel_shapes_is_refused_in_one_line() -> None:
    refuse_too_fast(load_fabric("paper-c"))
    with pytest.raises(InputError, match=r"link p0-t0-0:p0-t1-0 has 400 Gbit/s: use --target sim"):
        refuse_too_fast(build_fabric(FAST, "fast"))


def test_a_switchs_interface_whose_name_linux_does_not_take_is_refused_on_a_live_fabric() -> None:
    fabric = build_fabric("name: large\nplanes: 1\nt0: 101\nt1: 1\nhosts: 10100", "large")
    refuse_long_names(load_fabric("paper-c"))
    with pytest.raises(InputError, match=r"interface 'p0-t0-100-eth100' would have 16 .* --target sim"):
        refuse_long_names(fabric)
