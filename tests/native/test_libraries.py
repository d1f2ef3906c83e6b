"""The C libraries compile without warnings, and export the right functions and no others."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from mrclab.hosts.service.control.abi import STRUCTS
from mrclab.native.build import ALIASES, MRC, SOURCE, VERBS, libraries

HEADER = Path("/usr/include/infiniband/verbs.h")
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not HEADER.exists(),
    reason="needs a C compiler and libibverbs' header (apt install gcc libibverbs-dev)",
)
MOST_LINES = 2600
HARMLESS = re.compile(
    r"ibv_(\w+_str|rate_to_\w+|copy_\w+|get_sysfs_path|read_sysfs_file|register_driver|do(nt)?fork_range)$"
)
"""Functions that take no object of our library, so libibverbs' own versions work."""


def _exports(path: Path) -> dict[str, str]:
    """Return the exported functions of a library, each with its version."""
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        _, kind, name = line.split()[-3:]
        if kind in "TW":
            symbol, _, version = name.partition("@@")
            if "@" not in symbol:  # a single @ marks an older version of a function
                found[symbol] = version
    return found


def _library(name: str) -> Path:
    return next(path for path in libraries() if path.name == name)


def test_every_function_of_libibverbs_that_takes_an_object_is_ours() -> None:
    real = next(Path("/usr/lib").glob("*/libibverbs.so.1"))
    wanted = {
        name: version
        for name, version in _exports(real).items()
        if re.match("_?ibv_", name) and "PRIVATE" not in version and not HARMLESS.match(name)
    }
    ours = _exports(_library(VERBS))
    assert {name: ours.get(name) for name in wanted if ours.get(name) != wanted[name]} == {}


def test_nothing_else_is_exported() -> None:
    allowed = re.compile(r"_?ibv_\w+|rdma_create_(event_channel|id|ep)|dlsym|dlvsym|mrclab_\w+")
    assert [name for name in _exports(_library(VERBS)) if not allowed.fullmatch(name)] == []


MRC_FUNCTIONS = """
query_device_ex query_device query_version create_context destroy_context create_comp_channel
get_comp_channel_fd destroy_comp_channel create_cq poll_cq destroy_cq create_qp_hint destroy_qp_hint
query_qp_hint modify_qp_hint create_qp destroy_qp query_qp modify_qp get_qpn post_recv post_send
get_async_event ack_async_event req_notify_cq get_cq_event ack_cq_events
"""


CONTROL_FUNCTIONS = """
query_device_ex query_device query_version query_port modify_port modify_ev_fmt_profile query_ev_fmt_profile
modify_ev_profile query_ev_profile modify_cc_profile query_cc_profile create_ev_event_cq poll_ev_event
ep_batch_send_wait
"""


@pytest.mark.parametrize("name", [MRC, *ALIASES])
def test_the_mrc_library_has_the_41_functions_and_no_others(name: str) -> None:
    wanted = {f"mrc_{function}" for function in MRC_FUNCTIONS.split()}
    wanted |= {f"mrc_ctl_{function}" for function in CONTROL_FUNCTIONS.split()}
    assert len(wanted) == 27 + 14
    assert set(_exports(_library(name))) == wanted


OFFSETS = """
device_attr ev 4 cc 48 cc.algorithms 56 port_mask 64 options 68
ev_fmt_profile_attr current_state 4 mode 8 op 16 op.fields 24 op.count 32 vendor 40
ev port 32
ev_op_entry ev_new 33 state 68 flags 72
ev_profile_attr fmt_id 16 count 24 min_active 28 events 32 ev_op 40 ev_op.entries 48 ev_op.count 56
ev_profile_attr fields_op 64 fields_op.fields 72 fields_op.count 80 vendor 88
cc_profile_attr algorithm 8 config 16 vendor 24
cc_nscc_cfg adjust_bytes_threshold 4 base_rtt 12 eta 16 max_md_jump 32 max_cwnd 36 qa_gate 40 target_delay 48
ev_event ev 8 drops 44 state 48
ep_req sgid 8 dgid 24 mode 40 ev 44 port_status 80
ep_rsp port 2 rtt_ns 4 adjusted 8
"""
"""Offsets and sizes of the control API in bytes [mrc_ctl.h 1.0.1]."""
SIZES = {"device_attr": 72, "port_attr": 4, "ev_fmt_field": 1, "ev_fmt_profile_attr": 168, "ev": 33}
SIZES |= {"ev_field": 20, "ev_op_entry": 76, "ev_profile_attr": 216, "cc_profile_attr": 152}
SIZES |= {"cc_nscc_cfg": 52, "ev_event": 56, "ep_req": 88, "ep_rsp": 12}


def test_structures_of_the_control_api_lie_as_published(tmp_path: Path) -> None:
    lines = ['#include "mrc_ctl_abi.h"']
    for name, size in SIZES.items():
        assert struct.calcsize(STRUCTS[name]) == size
        lines.append(f'_Static_assert(sizeof(struct mrc_ctl_{name}) == {size}, "{name}");')
    for name, *places in (line.split() for line in OFFSETS.strip().splitlines()):
        for field, offset in zip(places[::2], places[1::2], strict=True):
            place = f"offsetof(struct mrc_ctl_{name}, {field})"
            lines.append(f'_Static_assert({place} == {offset}, "{name}.{field}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    subprocess.run(["cc", "-std=gnu11", "-fsyntax-only", f"-I{SOURCE}", source], check=True)
    assert set(STRUCTS) == set(SIZES)


def test_the_c_room_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in SOURCE.glob("*.[ch]"))
    assert lines <= MOST_LINES


WRAPPER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
const char *ibv_get_device_name(void *device)
{
    void *wrapped = dlopen(getenv("WRAPPED"), RTLD_NOW);
    void *plain = dlsym(wrapped, "ibv_get_device_name");
    void *versioned = dlvsym(wrapped, "ibv_get_device_name", "IBVERBS_1.1");
    if (!plain || plain == (void *)ibv_get_device_name || versioned != plain)
        return "itself";
    return "what it wraps";
}
"""
CALLER = r"""
#include <stdio.h>
const char *ibv_get_device_name(void *);
int main(void) { puts(ibv_get_device_name(0)); return 0; }
"""


def test_a_library_that_wraps_libibverbs_finds_ours_and_not_itself(tmp_path: Path) -> None:
    """Microsoft's mrc-verbs-shim-lib wraps libibverbs. With our library, it must not call itself for ever."""
    wrapper, caller = tmp_path / "wrapper.so", tmp_path / "caller"
    for name, source in (("wrapper", WRAPPER), ("caller", CALLER)):
        (tmp_path / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", wrapper, tmp_path / "wrapper.c", "-ldl"], check=True)
    subprocess.run(["cc", "-o", caller, tmp_path / "caller.c", wrapper], check=True)
    ours = str(_library(VERBS))
    environment = {**os.environ, "LD_PRELOAD": f"{wrapper}:{ours}", "WRAPPED": ours}
    done = subprocess.run([caller], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "what it wraps\n"
