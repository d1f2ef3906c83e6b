"""The cost of analysing a recovery run: time and memory for the events of its captures and logs.

    python benchmarks/analysis.py [--trials N] [DIR...]

Each DIR is the result directory of a `mrclab run link-kill`. Without DIR, the benchmark makes a run of
--trials, which needs root. An event is a captured packet or a line of an endpoint's log; 200 trials have some
millions of events. Each directory is analysed in a separate process, so that its peak memory is measured
alone. The time includes the reading of the files.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def analyse(directory: Path) -> dict[str, float]:
    """Analyse a run; return events, seconds and the peak of this process's memory in MiB."""
    from mrclab.experiments.measure.evidence import Evidence
    from mrclab.experiments.measure.faults import load_faults
    from mrclab.experiments.measure.pcap import read_pcap
    from mrclab.experiments.measure.recording import load_recording
    from mrclab.experiments.measure.repetition import measure
    from mrclab.hosts.transports.table import TRANSPORTS
    from mrclab.topologies import load_fabric

    result = json.loads((directory / "result.json").read_text())
    ((name, transport),) = result["transports"].items()
    sample, folder = transport["samples"][0], directory / f"{name}-0"
    captures = {path.stem: path for path in sorted((folder / "captures").glob("*.pcap"))}
    logs = {path.stem: path for path in (folder / "events").glob("*.jsonl")}
    hosts = tuple(captures)
    evidence = Evidence(
        transport=TRANSPORTS[name],
        number=0,
        seed=result["seed"],
        fabric=load_fabric(result["parameters"]["topology"]),
        hosts=hosts,
        pairs=((0, 1),),
        workload=result["parameters"]["workload"],
        measure_ns=sample["measure_ns"],
        end_ns=sample["end_ns"],
        faults=load_faults(folder / "faults.json"),
        captures=captures,
        recording=load_recording(next(folder.rglob("recording.json"))),
        event_logs=logs,
    )
    began = time.perf_counter()
    found = measure(evidence)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    packets = sum(len(read_pcap(path).rows) for path in captures.values())
    lines = sum(path.read_bytes().count(b"\n") for path in logs.values())
    return {"trials": len(found.trials), "events": packets + lines, "seconds": seconds, "peak_mib": peak}


def make_run(trials: int, directory: Path) -> int:
    """Run link-kill into a new directory and return the exit code."""
    command = [sys.executable, "-m", "mrclab", "run", "link-kill", "--trials", str(trials)]
    command += ["--out", str(directory)]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


def report(directories: Sequence[Path]) -> None:
    """Analyse runs and print a row for each."""
    table = Table("run", "trials", "events", "s", "s per million events", "peak MiB")
    for directory in directories:
        command = [sys.executable, __file__, "--one", str(directory)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        table.add_row(
            directory.name,
            f"{found['trials']:.0f}",
            f"{found['events']:,.0f}",
            f"{found['seconds']:.1f}",
            f"{found['seconds'] / found['events'] * 1e6:.1f}",
            f"{found['peak_mib']:.0f}",
        )
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    parser.add_argument("--trials", type=int, default=200, help="of the run to make where no DIR is given")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(analyse(args.directories[0])))
        return 0
    if args.directories:
        report(args.directories)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "link-kill"
        code = make_run(args.trials, run)
        if code == 0:
            report([run])
        return code


if __name__ == "__main__":
    sys.exit(main())
