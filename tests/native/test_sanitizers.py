"""The C libraries under the address and undefined-behaviour sanitizers, over two NICs in this process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from subprocess import Popen

import pytest

from mrclab.native.build import MRC, SOURCE, VERBS, build_into
from tests.support.native_services import TIMEOUT_S, Services, free_port, running
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
SOURCES = ROOT / "tests" / "support" / "programs"
SIZE, COUNT = "20000", "100"
FAULT = 86
"""The exit code of a program in which a sanitizer found an error."""


def _runtime() -> str | None:
    if shutil.which("gcc") is None or not HEADER.exists():
        return None
    argv = ["gcc", "-print-file-name=libasan.so"]
    found = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    return found if Path(found).is_absolute() else None


pytestmark = pytest.mark.skipif(
    _runtime() is None, reason="needs gcc with its sanitizers, and libibverbs-dev"
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_into(folder / "lib", FLAGS, hooks=False)
        libraries = folder / "lib"
        mrc = [f"-I{SOURCE}", f"-L{libraries}", f"-l:{MRC}", f"-Wl,-rpath-link,{libraries}", "-libverbs"]
        for program, source, options in (
            ("verbs", "pair", ["-libverbs"]),
            ("mrc", "pair", ["-DMRC", *mrc]),
            ("controller", "controller", mrc),
            ("refusals", "refusals", ["-libverbs"]),
        ):
            argv = ["gcc", "-g", *FLAGS, "-o", folder / program, SOURCES / f"{source}.c", *options]
            subprocess.run(argv, check=True)
        yield folder


def _start(folder: Path, nic: Path, program: str, *words: str) -> AbstractContextManager[Popen[str]]:
    libraries = folder / "lib"
    options = f"exitcode={FAULT}:abort_on_error=0:detect_leaks=0"
    variables = {"ASAN_OPTIONS": options, "UBSAN_OPTIONS": f"print_stacktrace=1:{options}"}
    preload = f"{_runtime()}:{libraries / VERBS}"
    return running(nic, libraries, folder / program, *words, preload=preload, variables=variables)


@pytest.mark.parametrize(("api", "mode"), [("verbs", "events"), ("mrc", "events"), ("verbs", "fork")])
def test_a_pair_of_programs_is_clean(services: Services, folder: Path, api: str, mode: str) -> None:
    here, there = services.paths
    port = free_port()
    with (
        _start(folder, there, api, "server", port, SIZE, COUNT, mode) as server,
        _start(folder, here, api, "client", port, SIZE, COUNT, "127.0.0.1") as client,
    ):
        with suppress(subprocess.TimeoutExpired):
            client.wait(TIMEOUT_S)
            server.wait(TIMEOUT_S)
        client.kill()
        server.kill()
        said = {program: program.communicate()[0] for program in (server, client)}
    for program, words in said.items():
        assert program.returncode == 0, words
        assert f"ok {COUNT} messages" in words


def test_refusals_are_clean(services: Services, folder: Path) -> None:
    with _start(folder, services.paths[0], "refusals") as program:
        said, _ = program.communicate(timeout=TIMEOUT_S)
    assert program.returncode == 0, said
    assert said.count("EOPNOTSUPP") == 23


def test_a_controller_is_clean(services: Services, folder: Path) -> None:
    with _start(folder, services.paths[0], "controller", "refuse") as program:
        said, _ = program.communicate(timeout=TIMEOUT_S)
    assert (program.returncode, said) == (0, "refused\n")
