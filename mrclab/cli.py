"""``mrclab``: the commands and their options.

Exit codes (docs/troubleshooting.md): 0 success, 2 bad input, 3 the machine lacks something, 1 anything else.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

from mrclab.arguments import Parser
from mrclab.chakra_arguments import chakra_arguments
from mrclab.exec_arguments import exec_arguments
from mrclab.exercise_arguments import exercise_arguments
from mrclab.extras import missing_extra
from mrclab.fault_arguments import fault_arguments
from mrclab.lab_arguments import lab_arguments
from mrclab.linux.errors import InputError, MrclabError
from mrclab.linux.life import signals
from mrclab.linux.system import require_linux
from mrclab.logs import set_up_logging
from mrclab.on_linux import require_system
from mrclab.p4src.targets import TARGETS
from mrclab.perf_arguments import perf_arguments
from mrclab.profile_arguments import profile_arguments
from mrclab.scaling.arguments import scale_arguments
from mrclab.version import version

FAILED, INTERRUPTED = 1, 130
SMALL = "tiny, lab, two-racks, wide, thin"
"""The shipped topologies that fit on one machine; virtual time has larger ones."""

Command = Callable[[argparse.Namespace], int]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="mrclab", description="Emulation testbed for Multipath Reliable Connection (MRC).")
    parser.add_argument("--version", action="version", version=f"mrclab {version()}")
    parser.add_argument("--verbose", action="store_true", help="say on stderr what is going on")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a scenario on a fabric of its own")
    run.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", help="a shipped scenario (link-kill) or a YAML file"
    )
    run.add_argument("--target", choices=(*TARGETS, "sim"), default=os.environ.get("MRCLAB_TARGET"))
    run.add_argument(
        "--topology",
        metavar="T",
        help=f"a shipped topology ({SMALL}; for --target sim also paper-b, paper-c, pod) or a YAML file",
    )
    _program_argument(run)
    run.add_argument("--trials", type=int, metavar="N", help="how many faults, or repetitions")
    run.add_argument("--seed", type=int, metavar="S", help="of places, paths and bytes")
    run.add_argument("--out", metavar="DIR", help="where results go (default: results/<scenario>/<time>/)")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the scenario"
    )
    run.add_argument(
        "--no-pcap", action="store_true", help="delete each capture as soon as its times have been read"
    )
    run.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="repetitions at a time, in virtual time (default 1)"
    )
    run.add_argument("--resume", metavar="DIR", help="go on with the run of a directory that ended early")
    run.add_argument(
        "--quick", action="store_true", help="a short version of training: MRC and RoCEv2, 30 steps, once"
    )
    run.add_argument("--dry-run", action="store_true", help="print the plan, and touch nothing")
    run.set_defaults(do=_run)

    soak = commands.add_parser("soak", help="run streams under random faults and account for every byte")
    soak.add_argument(
        "soak",
        metavar="SOAK",
        nargs="?",
        default="random-faults",
        help="a shipped scenario or a YAML file (random-faults)",
    )
    soak.add_argument("--duration", metavar="TIME", help="of traffic, such as '30 s' or 1h")
    soak.add_argument("--target", choices=TARGETS, default=os.environ.get("MRCLAB_TARGET"))
    soak.add_argument("--topology", metavar="T", help=f"a shipped topology ({SMALL}) or a YAML file")
    soak.add_argument("--seed", type=int, metavar="S", help="of messages and faults")
    soak.add_argument("--out", metavar="DIR", help="where results go (default: results/<scenario>/<time>/)")
    soak.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the scenario"
    )
    soak.add_argument("--dry-run", action="store_true", help="print the plan, and touch nothing")
    soak.set_defaults(do=_soak)

    up = commands.add_parser("up", help="bring a fabric up and leave it running")
    up.add_argument("--topology", metavar="T", default="lab", help=f"{SMALL} or a YAML file")
    up.add_argument("--target", choices=TARGETS, default=os.environ.get("MRCLAB_TARGET", "auto"))
    _program_argument(up)
    _force_argument(up)
    up.set_defaults(do=_up)

    down = commands.add_parser("down", help="take the running fabric down")
    _force_argument(down)
    down.set_defaults(do=_down)

    status = commands.add_parser("status", help="what is up, and what its switches count")
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument("--ports", action="store_true", help="the counters of every port")
    status.add_argument("--sids", action="store_true", help="the hits of every SID")
    status.add_argument(
        "--watch", metavar="INTERVAL", nargs="?", const="1 s", help="again and again, with rates (1 s)"
    )
    status.set_defaults(do=_status)

    live = commands.add_parser("live", help="a page on which one breaks links and sees what happens")
    live.add_argument("--topology", metavar="T", help="a shipped topology (lab) or a YAML file")
    live.add_argument(
        "--target",
        choices=(*TARGETS, "sim"),
        default=os.environ.get("MRCLAB_TARGET", "auto"),
        help="sim: the simulator in slow motion, on any system and without root (auto)",
    )
    _program_argument(live)
    live.add_argument("--port", type=int, metavar="N", default=8047, help="of the page (8047; 0: any)")
    live.add_argument("--listen", metavar="ADDRESS", help="for other machines too (default: this one only)")
    live.add_argument("--run", metavar="DIR", help="follow a training that a run writes to DIR")
    live.set_defaults(do=_live)

    watch = commands.add_parser("watch", help="what the live page sees, in the terminal")
    watch.add_argument("--once", action="store_true", help="one look, not again and again")
    watch.add_argument("--json", action="store_true", help="one look, for programs")
    watch.set_defaults(do=_watch)

    cli = commands.add_parser("cli", help="Mininet's command line on the running fabric")
    cli.set_defaults(do=_cli)

    fault = commands.add_parser("fault", help="break something of the running fabric, or list how")
    fault_arguments(fault)
    _force_argument(fault)
    fault.set_defaults(do=_fault)

    restore = commands.add_parser("restore", help="undo a fault of the running fabric, or all")
    restore.add_argument("where", metavar="WHERE", nargs="?", help="the place of a fault")
    restore.add_argument("--all", action="store_true", help="all faults")
    restore.add_argument("--json", action="store_true", help="stamps of CLOCK_MONOTONIC, for programs")
    _force_argument(restore)
    restore.set_defaults(do=_restore)
    exec_arguments(commands.add_parser("exec", help="run a program on a host, with the host's NIC mrc0"))

    perf = commands.add_parser("perf", help="perftest's write_bw and write_lat on the running fabric")
    perf_arguments(perf)
    perf.set_defaults(do=_perf)

    profile = commands.add_parser("profile", help="EV and congestion control profiles of NICs in use")
    profile_arguments(profile)
    profile.set_defaults(do=_profile)

    probe = commands.add_parser("probe", help="time every hop of paths on the running fabric, out and back")
    probe.add_argument("source", metavar="HOST", help="who sends, such as h0")
    probe.add_argument("target", metavar="HOST", nargs="?", help="to its T0 and back (else: to T1s and back)")
    probe.add_argument("--path", metavar="SWITCH", help="the paths over this switch, such as p0-t1-2")
    probe.add_argument("--all", action="store_true", help="all paths, not the first only")
    probe.add_argument("-n", "--count", type=int, metavar="N", default=20, help="probes per path (20)")
    probe.add_argument("--json", action="store_true", help="every probe, for programs")
    probe.set_defaults(do=_probe)

    mapper = commands.add_parser("clustermapper", help="name bad links and switches of the running fabric")
    mapper.add_argument("--interval", metavar="TIME", default="1 ms", help="between two rounds (1 ms)")
    mapper.add_argument("--for", dest="duration", metavar="TIME", help="stop after so long (without end)")
    mapper.add_argument("--json", action="store_true", help="events as JSON lines, for programs")
    mapper.set_defaults(do=_clustermapper)

    lab = commands.add_parser("lab", help="the labs of the classroom: list, start, check, submit")
    lab_arguments(lab)
    lab.set_defaults(do=_lab)

    exercise_arguments(
        commands.add_parser("exercise", help="an exercise of a P4 course (topology.json), with a prompt")
    )

    shell = commands.add_parser("shell", help="p4runtime-shell on a switch of the running fabric")
    shell.add_argument(
        "switch", metavar="SWITCH", help="such as p0-t0-0; a script may come on standard input"
    )
    shell.set_defaults(do=_shell)

    compare = commands.add_parser("compare", help="runs side by side, with the size of the difference")
    compare.add_argument("a", metavar="A", help="the result directory of a run")
    compare.add_argument("b", metavar="B", nargs="+", help="that of another, or of several")
    compare.add_argument("--json", action="store_true", help="for programs")
    compare.add_argument("--csv", action="store_true", help="a line for each metric, for spreadsheets")
    compare.set_defaults(do=_compare)

    report = commands.add_parser("report", help="a page of a run, or an index page over many")
    report.add_argument("directories", metavar="DIR", nargs="+", help="the result directory of a run")
    report.add_argument("--index", metavar="FILE", help="the index page (default: index.html for many runs)")
    report.set_defaults(do=_report)

    prune = commands.add_parser(
        "prune", help="what results take on the disk, and remove old ones or captures"
    )
    prune.add_argument("directory", metavar="DIR", nargs="?", default="results", help="of results (results)")
    prune.add_argument(
        "--keep", type=int, metavar="N", help="remove all but the newest N runs of each scenario"
    )
    prune.add_argument("--captures", action="store_true", help="remove captures; figures and pages stay")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.set_defaults(do=_prune)

    scale = commands.add_parser("scale", help="a fabric too large to run: cost, claims, failures, shares")
    scale_arguments(scale)
    scale.set_defaults(do=_scale)

    schema = commands.add_parser("schema", help="print the JSON schema of a file, for editors")
    schema.add_argument("of", choices=("scenario", "topology", "result"), help="the kind of file")
    schema.set_defaults(do=_schema)

    trace = commands.add_parser("trace", help="a run's events for Perfetto or chrome://tracing")
    trace.add_argument("directory", metavar="DIR", help="the result directory of a run")
    trace.add_argument("--out", metavar="FILE", help="where it goes (default: DIR/trace.json)")
    trace.set_defaults(do=_trace)

    chakra_arguments(commands.add_parser("chakra", help="execution traces: what one holds; write one"))

    sweep = commands.add_parser("sweep", help="a grid of parameters and seeds, on this machine or on many")
    sweep.add_argument("file", metavar="FILE", help="a YAML file, or a shipped sweep (dead-links)")
    sweep.add_argument("--workers", type=int, metavar="N", help="processes on this machine (one a CPU)")
    sweep.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a Dask scheduler, or its file: workers anywhere"
    )
    sweep.add_argument("--out", metavar="DIR", help="of points and tables (default: results/sweep/<name>/)")
    sweep.add_argument("--dry-run", action="store_true", help="check the file and count the points")
    sweep.set_defaults(do=_sweep)

    clean = commands.add_parser("clean", help="remove whatever a crashed run left behind")
    _force_argument(clean)
    clean.set_defaults(do=_clean)

    doctor = commands.add_parser("doctor", help="check what this machine has and what it lacks")
    doctor.set_defaults(do=_doctor)
    return parser


def _program_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--program", metavar="FILE", help="a switch program of one's own: P4, or BMv2 JSON with its P4Info"
    )


def _force_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="also where the fabric is somebody else's")


# Each command does its imports when it runs, so that `mrclab --help` and bad input answer at once.


def _run(args: argparse.Namespace) -> int:
    from mrclab.experiments.spec.shipped import SCENARIOS

    if args.scenario not in (None, "figures"):
        SCENARIOS.text(args.scenario)  # a wrong name is refused before all else is imported
    from mrclab.run import run

    return run(args, parser().parse_args)


def _soak(args: argparse.Namespace) -> int:
    from mrclab.experiments.spec.shipped import SCENARIOS

    SCENARIOS.text(args.soak)
    from mrclab.soak import soak

    return soak(args)


def _up(args: argparse.Namespace) -> int:
    from mrclab.running import up

    return up(args.topology, args.target, program=args.program, force=args.force)


def _down(args: argparse.Namespace) -> int:
    from mrclab.running import down

    return down(force=args.force)


def _status(args: argparse.Namespace) -> int:
    from mrclab.status import status

    watch_s = None
    if args.watch is not None:
        from mrclab.topologies.units import option_value, time_ns

        seconds = f"{args.watch} s" if args.watch.replace(".", "", 1).isdigit() else args.watch  # as watch(1)
        watch_s = option_value(time_ns, seconds, "--watch") / 1e9
    return status(as_json=args.json, ports=args.ports, sids=args.sids, watch_s=watch_s)


def _live(args: argparse.Namespace) -> int:
    if args.target == "sim" and args.run is None:
        from mrclab.play.command import live_simulated

        return live_simulated(args)
    require_linux("mrclab live")
    from mrclab.live.command import live

    return live(args)


def _watch(args: argparse.Namespace) -> int:
    from mrclab.live.watch import watch

    return watch(once=args.once, as_json=args.json)


def _trace(args: argparse.Namespace) -> int:
    from mrclab.trace import trace

    return trace(args.directory, args.out)


def _cli(args: argparse.Namespace) -> int:
    from mrclab.running import cli

    return cli()


def _fault(args: argparse.Namespace) -> int:
    from mrclab.fault import fault

    return fault(args)


def _restore(args: argparse.Namespace) -> int:
    from mrclab.fault import restore

    return restore(args)


def _perf(args: argparse.Namespace) -> int:
    from mrclab.perf import perf

    return perf(args)


def _profile(args: argparse.Namespace) -> int:
    from mrclab.profile import profile

    return profile(args)


def _probe(args: argparse.Namespace) -> int:
    from mrclab.probe import probe

    return probe(args)


def _clustermapper(args: argparse.Namespace) -> int:
    from mrclab.clustermapper import clustermapper

    return clustermapper(args)


def _lab(args: argparse.Namespace) -> int:
    from mrclab.lab import lab

    return lab(args)


def _shell(args: argparse.Namespace) -> int:
    from mrclab.shell import shell

    return shell(args.switch)


def _compare(args: argparse.Namespace) -> int:
    from mrclab.compare import compare

    return compare([args.a, *args.b], form="json" if args.json else "csv" if args.csv else "")


def _report(args: argparse.Namespace) -> int:
    from mrclab.report import report

    return report(args.directories, args.index)


def _prune(args: argparse.Namespace) -> int:
    from mrclab.prune import prune

    return prune(args)


def _schema(args: argparse.Namespace) -> int:
    from mrclab.schema import schema

    return schema(args.of)


def _scale(args: argparse.Namespace) -> int:
    from mrclab.scaling.command import scale

    return scale(args)


def _sweep(args: argparse.Namespace) -> int:
    from mrclab.sweep.command import sweep

    return sweep(args)


def _clean(args: argparse.Namespace) -> int:
    from mrclab.running import clean

    return clean(force=args.force)


def _doctor(args: argparse.Namespace) -> int:
    from mrclab.doctor import doctor

    return doctor()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code. Signals end it in order, from the start on."""
    with signals.as_exceptions():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        _require_utf8(sys.argv[1:] if argv is None else argv)
    except InputError as error:
        return _fail(error, error.exit_code)
    args = parser().parse_args(argv)
    set_up_logging(verbose=args.verbose)
    command: Command = args.do
    try:
        require_system(args.command)
        code = command(args)
        sys.stdout.flush()
        return code
    except signals.Ended as ended:
        return _fail(ended, 128 + ended.number)
    except MrclabError as error:
        if args.verbose and error.exit_code == FAILED:
            raise
        return _fail(error, error.exit_code)
    except BrokenPipeError:
        # The reader of our output has closed it (`mrclab status | head`): there is nowhere left to write.
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
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # a library tidied up, and failed at that
            return _fail("interrupted", INTERRUPTED)
        if args.verbose:
            raise
        if (lacking := missing_extra(args.command, error)) is not None:
            return _fail(lacking, lacking.exit_code)
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)


def _require_utf8(words: Sequence[str]) -> None:
    """Raise InputError if a word is not text: results and pages, which are UTF-8, could not name it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"'{word}' holds bytes that are not UTF-8: give another name") from None


def _fail(error: object, code: int) -> int:
    print(f"mrclab: {error}", file=sys.stderr)
    return code
