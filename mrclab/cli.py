"""The command line: the table of commands, and the parser. Each error becomes a line and an exit code.

Exit codes (docs/troubleshooting.md): 0 success, 2 bad input, 3 the machine lacks something, 1 other errors.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mrclab.arguments import labs, running, runs
from mrclab.arguments.parser import Parser, add_force
from mrclab.linux.errors import InputError, MachineError, MrclabError
from mrclab.linux.life import signals
from mrclab.linux.system import require_linux
from mrclab.logs import set_up_logging
from mrclab.version import version

Arguments = Callable[[argparse.ArgumentParser], None]


def _none(parser: argparse.ArgumentParser) -> None:
    """Add no option."""


@dataclass(frozen=True)
class Command:
    """A command of ``mrclab``.

    ``run`` names a module and its function, which takes the parsed arguments and returns the exit code. The
    module is imported only when the command runs, so that help and errors appear quickly. If ``linux`` is
    true, the command needs a running fabric, so it is refused on all systems except Linux.
    """

    name: str
    help: str
    run: str
    arguments: Arguments = _none
    linux: bool = False


COMMANDS = (
    Command("run", "Run a scenario on a fabric of its own.", "mrclab.dispatch:run", runs.run_arguments),
    Command(
        "soak",
        "Run streams under random faults and account for every byte.",
        "mrclab.dispatch:soak",
        runs.soak_arguments,
    ),
    Command("up", "Bring a fabric up and leave it running.", "mrclab.running:up", running.up_arguments, True),
    Command("down", "Take the running fabric down.", "mrclab.running:down", add_force, True),
    Command(
        "status",
        "Show what is up, and what its switches count.",
        "mrclab.status:status",
        running.status_arguments,
        True,
    ),
    Command(
        "live",
        "Serve a page on which you break links and watch.",
        "mrclab.dispatch:live",
        running.live_arguments,
    ),
    Command(
        "watch",
        "Show in the terminal what the live page sees.",
        "mrclab.live.watch:watch",
        running.watch_arguments,
        True,
    ),
    Command("cli", "Open Mininet's prompt on the running fabric.", "mrclab.running:cli", linux=True),
    Command(
        "fault",
        "Break something of the running fabric, or list the kinds of faults.",
        "mrclab.fault:fault",
        running.fault_arguments,
    ),
    Command(
        "restore",
        "Undo a fault of the running fabric, or all.",
        "mrclab.fault:restore",
        running.restore_arguments,
        True,
    ),
    Command(
        "exec",
        "Run a program on a host, with the host's NIC mrc0.",
        "mrclab.dispatch:execute",
        running.exec_arguments,
        True,
    ),
    Command(
        "perf",
        "Measure as perftest's write_bw and write_lat do, on the running fabric.",
        "mrclab.perf:perf",
        running.perf_arguments,
        True,
    ),
    Command(
        "profile",
        "Show and change the EV and congestion control profiles of NICs in use.",
        "mrclab.profile:profile",
        running.profile_arguments,
        True,
    ),
    Command(
        "probe",
        "Time every hop of paths on the running fabric, out and back.",
        "mrclab.probe:probe",
        running.probe_arguments,
        True,
    ),
    Command(
        "clustermapper",
        "Find bad links and switches of the running fabric, and name them.",
        "mrclab.clustermapper:clustermapper",
        running.clustermapper_arguments,
        True,
    ),
    Command(
        "lab",
        "List, start, check and submit the labs of the classroom.",
        "mrclab.lab:lab",
        labs.lab_arguments,
    ),
    Command(
        "exercise",
        "Run an exercise of a P4 course (topology.json), with a prompt.",
        "mrclab.dispatch:exercise",
        running.exercise_arguments,
        True,
    ),
    Command(
        "shell",
        "Open p4runtime-shell on a switch of the running fabric.",
        "mrclab.shell:shell",
        running.shell_arguments,
        True,
    ),
    Command(
        "compare",
        "Compare runs side by side, with the size of the difference.",
        "mrclab.compare:compare",
        runs.compare_arguments,
    ),
    Command(
        "report",
        "Write the page of a run, or an index page over many.",
        "mrclab.report:report",
        runs.report_arguments,
    ),
    Command(
        "prune",
        "Show how much of the disk results take, and remove old ones or captures.",
        "mrclab.prune:prune",
        runs.prune_arguments,
    ),
    Command(
        "scale",
        "Compute a fabric too large to run: cost, claims, failures, shares.",
        "mrclab.scaling.command:scale",
        runs.scale_arguments,
    ),
    Command(
        "schema",
        "Print the JSON schema of a file, for editors.",
        "mrclab.schema:schema",
        runs.schema_arguments,
    ),
    Command(
        "trace",
        "Write a run's events for Perfetto or chrome://tracing.",
        "mrclab.trace:trace",
        runs.trace_arguments,
    ),
    Command(
        "chakra",
        "Show an execution trace, or write the trace of a language model.",
        "mrclab.chakra:chakra",
        runs.chakra_arguments,
    ),
    Command(
        "sweep",
        "Run a grid of parameters and seeds, on this machine or on many.",
        "mrclab.sweep.command:sweep",
        runs.sweep_arguments,
    ),
    Command("clean", "Remove whatever a crashed run left behind.", "mrclab.running:clean", add_force, True),
    Command("doctor", "Check what this machine has and what it lacks.", "mrclab.running:doctor", linux=True),
)
"""The commands, in the order in which the help lists them."""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser. The parsed arguments have the command's name in `command`."""
    parser = Parser(prog="mrclab", description="Emulation testbed for Multipath Reliable Connection (MRC).")
    parser.add_argument("--version", action="version", version=f"mrclab {version()}")
    parser.add_argument("--verbose", action="store_true", help="Report on stderr what is going on.")
    rows = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.arguments(rows.add_parser(command.name, help=command.help))
    return parser


def carry_out(args: argparse.Namespace) -> int:
    """Import a parsed command's function, call it, and return its exit code.

    Raise MachineError if the command needs Linux and this system is not Linux.
    """
    command = next(each for each in COMMANDS if each.name == args.command)
    if command.linux:
        require_linux(f"mrclab {command.name}")
    module, _, function = command.run.partition(":")
    code: int = getattr(importlib.import_module(module), function)(args)
    return code


EXTRAS = {
    "testbed": ("finsy", "google", "grpc", "grpc_status", "llvmlite", "mininet", "pyroute2"),
    "live": ("prometheus_client", "starlette", "uvicorn"),
    "labs": ("hypothesis", "pandas"),
    "sweep": ("distributed",),
    "training": ("jax",),
}
"""The top-level modules that each optional dependency group of the package installs."""


def missing_extra(command: str, error: Exception) -> MachineError | None:
    """Return the error to report if an optional dependency is missing; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    top = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            wanted = f"live,{extra}" if command == "live" and extra != "live" else extra
            return MachineError(f"mrclab {command} needs Python's '{top}'", f"pip install 'mrclab[{wanted}]'")
    return None


FAILED, INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. A signal raises an exception, so the command cleans up."""
    with signals.as_exceptions():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        _require_utf8(sys.argv[1:] if argv is None else argv)
    except InputError as error:
        return _fail(error, error.exit_code)
    args = parser().parse_args(argv)
    set_up_logging(verbose=args.verbose)
    try:
        code = carry_out(args)
        sys.stdout.flush()
        return code
    except signals.Ended as ended:
        return _fail(ended, 128 + ended.number)
    except MrclabError as error:
        if args.verbose and error.exit_code == FAILED:
            raise
        return _fail(error, error.exit_code)
    except BrokenPipeError:
        # The program that reads the output has ended (`| head`). Output to /dev/null gives no error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        if args.verbose:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" (writing {error.filename})" if error.filename else ""
            return _fail(f"the disk is full{where}: make room (mrclab prune), and try again", FAILED)
        if error.errno == errno.ENAMETOOLONG:
            return _fail("a path is too long for this system: give a shorter one", InputError.exit_code)
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # a library failed while it handled Ctrl-C
            return _fail("interrupted", INTERRUPTED)
        if args.verbose:
            raise
        if (lacking := missing_extra(args.command, error)) is not None:
            return _fail(lacking, lacking.exit_code)
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)


def _require_utf8(words: Sequence[str]) -> None:
    """Raise InputError if a word is not UTF-8, because results and pages could not contain it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"'{word}' holds bytes that are not UTF-8: give another name") from None


def _fail(error: object, code: int) -> int:
    words = " ".join(str(error).splitlines())  # a path in it may contain line ends
    print(f"mrclab: {words}", file=sys.stderr)
    return code
