"""Build the C libraries, unless they are built already.

    python -m mrclab.native.build

A build is stored in the virtual environment, in a folder named by the hash of its source.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mrclab.hosts.service.shared_memory import header
from mrclab.linux.errors import MachineError

SOURCE = Path(__file__).parent
VERBS = "libmrclab-verbs.so"
MRC = "lib_mrc.so"
ALIASES = ("libmrc.so", "libnv_mrc.so")
"""Other file names that programs use for lib_mrc.so."""
FLAGS = (
    *(
        "-std=gnu11",
        "-O2",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-pthread",
        "-fno-strict-aliasing",
    ),
    *("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes"),
    "-Wno-unused-parameter",
)
HOOKS = "hooks.c"
LIBRARIES = {
    VERBS: (
        (
            "device.c",
            "objects.c",
            "queues.c",
            "extended.c",
            "session.c",
            HOOKS,
            "refused.c",
            "refused_calls.c",
        ),
        ("-Wl,--version-script={source}/verbs.map", "-ldl"),
    ),
    MRC: (("mrc.c", "mrc_ctl.c"), (f"-l:{VERBS}",)),
}
MACHINE = "x86_64"


def libraries(build: Path | None = None) -> list[Path]:
    """Return the libraries of the present source. Build them if necessary.

    Raise MachineError if the machine has another processor, no compiler, or no header of libibverbs.
    """
    if platform.machine() != MACHINE:
        raise MachineError(
            f"programs with the NIC need a processor of type {MACHINE}, this is {platform.machine()}"
        )
    build = build or directory()
    if not build.is_dir():
        build_into(build)
    return sorted(path for path in build.iterdir() if ".so" in path.name)


def directory() -> Path:
    """Return the folder for the build of the present source. The folder exists only after this build."""
    digest = hashlib.sha256(f"{FLAGS}{LIBRARIES}{header()}".encode())
    for path in sorted([*SOURCE.glob("*.[ch]"), *SOURCE.glob("*.map")]):
        digest.update(path.read_bytes())
    return Path(sys.prefix) / "mrclab-native" / digest.hexdigest()[:16]


def build_into(target: Path, extra: tuple[str, ...] = (), *, hooks: bool = True) -> None:
    """Build the libraries into a new folder. ``extra`` are compiler options, for instance for sanitizers.

    A sanitizer calls dlsym before it is ready, so its build must not have the hook of dlsym (``hooks``).
    Raise MachineError if the compiler or a header is missing, or if the compilation fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MachineError("no C compiler is here", "apt install gcc libc6-dev")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        folder = Path(work)
        made = folder / "made"
        made.mkdir()
        (folder / "layout.h").write_text(header(), encoding="ascii")
        for name, (sources, options) in LIBRARIES.items():
            argv = [compiler, *FLAGS, *extra, f"-I{folder}", f"-I{SOURCE}", "-o", str(made / name)]
            argv += [str(SOURCE / source) for source in sources if hooks or source != HOOKS]
            _compile([*argv, f"-L{made}", *(option.format(source=SOURCE) for option in options)])
        if MRC in LIBRARIES:
            for alias in ALIASES:
                (made / alias).symlink_to(MRC)
        if not target.is_dir():
            made.replace(target)


def _compile(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "infiniband/verbs.h" in done.stderr:
        raise MachineError("the header of libibverbs is missing", "apt install libibverbs-dev")
    raise MachineError(f"the C libraries do not compile: {done.stderr.strip()}")


def main() -> None:
    """Build the libraries, and print their paths."""
    for path in libraries():
        print(path)


if __name__ == "__main__":
    main()
