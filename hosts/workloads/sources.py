"""Sources of graphs: JSON texts with the path of a trace's files, or with the parameters of a generator.

A source is sent to the processes of all ranks. Each process reads the trace itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mrclab.hosts.workloads.chakra import ops_of, read_rank
from mrclab.hosts.workloads.graph import (
    MAX_OPS,
    MAX_RANKS,
    Graph,
    Matched,
    Op,
    collective_graph,
    matched,
    together,
)
from mrclab.hosts.workloads.recorded import read_recorded, recorded_graph
from mrclab.hosts.workloads.traffic import (
    DISTRIBUTIONS,
    Arrivals,
    Distribution,
    arrivals_graph,
    read_distribution,
    read_matrix,
)
from mrclab.hosts.workloads.training_steps import DdpStep, LlmStep, ddp_graph, llm_graph
from mrclab.linux.errors import DAMAGE, InputError

MAX_FILE_BYTES: Final = 256 << 20
"""Largest size of one rank's file, uncompressed, bytes."""
_SUFFIXES: Final = (".et", ".json")
_GZIP: Final = b"\x1f\x8b"


def llm_source(step: Mapping[str, Any]) -> str:
    """Return the source (JSON text) of a generated training step of a language model."""
    return json.dumps({"llm": dict(step)}, sort_keys=True)


def ddp_source(step: Mapping[str, Any]) -> str:
    """Return the source (JSON text) of a data-parallel step in which gradients are summed in buckets."""
    return json.dumps({"ddp": dict(step)}, sort_keys=True)


def trace_source(path: str, groups: str = "", ranks: int = 0) -> str:
    """Return the source (JSON text) of a trace.

    ``path`` is the directory of the trace, or the common start of its files' names. ``groups`` is a JSON file
    with the ranks of each process group. If a trace has one file, all ``ranks`` ranks play this file.
    """
    place = str(Path(path).resolve())
    return json.dumps(
        {"trace": place, "groups": str(Path(groups).resolve()) if groups else "", "ranks": ranks}
    )


def collective_source(operation: str, ranks: int, size_bytes: int) -> str:
    """Return the source (JSON text) of one collective."""
    return json.dumps({"collective": [operation, ranks, size_bytes]})


def tenants_source(jobs: Mapping[str, str]) -> str:
    """Return the source (JSON text) of several jobs on one fabric. It contains the source of each job."""
    return json.dumps({"tenants": dict(jobs)})


def matrix_source(path: str) -> str:
    """Return the source (JSON text) of a traffic matrix, a file in the format of htsim."""
    return json.dumps({"matrix": str(Path(path).resolve())})


def recorded_source(path: str, pauses: float, requests: int) -> str:
    """Return the source (JSON text) of recorded requests, with the numbers that `recorded_graph` explains."""
    return json.dumps({"recorded": [str(Path(path).resolve()), pauses, requests]})


def arrivals_source(arrivals: Arrivals) -> str:
    """Return the source (JSON text) of random flows."""
    return json.dumps({"arrivals": asdict(arrivals)}, sort_keys=True)


def distribution_of(name: str) -> Distribution:
    """Return the distribution with this name. If there is none, read the file with this name.

    Raise InputError if there is no such file, or if it is not valid.
    """
    if name in DISTRIBUTIONS:
        return DISTRIBUTIONS[name]
    if not Path(name).is_file():
        known = ", ".join(DISTRIBUTIONS)
        raise InputError(f"no distribution '{name}': {known}, or a file of bytes and percent")
    return read_distribution(read_file(Path(name)).decode(errors="replace"), name)


@lru_cache(maxsize=2)
def source_of(text: str) -> Matched:
    """Return the graph of a source, with paired communications. Raise InputError if the source is bad."""
    return matched(_graph(json.loads(text)))


def _graph(source: Mapping[str, Any]) -> Graph:
    if "llm" in source:
        return llm_graph(LlmStep(**source["llm"]))
    if "ddp" in source:
        return ddp_graph(DdpStep(**source["ddp"]))
    if "collective" in source:
        return collective_graph(*source["collective"])
    if "tenants" in source:
        return together({name: _graph(json.loads(of)) for name, of in source["tenants"].items()})
    if "matrix" in source:
        path = source["matrix"]
        return read_matrix(read_file(Path(path)).decode(errors="replace"), path)
    if "recorded" in source:
        path, pauses, requests = source["recorded"]
        found = read_recorded(read_file(Path(path)).decode(errors="replace"), path)
        return recorded_graph(path, found, pauses, requests)
    if "arrivals" in source:
        given = source["arrivals"]
        return arrivals_graph(Arrivals(**{**given, "sizes": tuple(map(tuple, given["sizes"]))}))
    return read_trace(source["trace"], source["groups"], source["ranks"])


def read_trace(path: str, groups: str = "", ranks: int = 0) -> Graph:
    """Read all files of a trace. Raise InputError if a file is missing, too large or not a trace."""
    files = trace_files(path)
    known = read_groups(groups) if groups else {}
    if len(files) == 1 and ranks > 1:
        if ranks > MAX_RANKS:
            raise InputError(f"{ranks} ranks: {MAX_RANKS} at most", where=path)
        only = read_rank(read_file(files[0]), str(files[0]))
        size = ranks
        traces = [only] * size
    else:
        size = len(files)
        if ranks not in (0, size):
            raise InputError(f"it has {size} ranks, not {ranks}", where=path)
        traces = []
        for file in files:
            traces.append(read_rank(read_file(file), str(file)))
            if sum(len(trace.nodes) for trace in traces) > MAX_OPS:
                raise InputError(f"more than {MAX_OPS} nodes", where=path)
    shared: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        shared |= {name: members for name, members in trace.groups.items() if name not in shared}
    shared |= known
    listed: list[tuple[Op, ...]] = []
    for rank, trace in enumerate(traces):
        where = str(files[min(rank, len(files) - 1)])
        listed.append(tuple(ops_of(trace, size, shared, where)))
    return Graph(Path(path).name, tuple(listed))


def trace_files(path: str) -> list[Path]:
    """Return the files of a trace, in the order of ranks. Raise InputError if a file is missing."""
    given = Path(path)
    if given.is_file():
        return [given]
    folder, stem = (given, "") if given.is_dir() else (given.parent, given.name)
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        number = file.name.removesuffix(file.suffix).rpartition(".")
        matches = file.suffix in _SUFFIXES and number[2].isdecimal() and (not stem or number[0] == stem)
        if matches and file.is_file():
            rank = int(number[2])
            if rank in found:
                raise InputError(f"two files of rank {rank}: name their common beginning", where=path)
            found[rank] = file
    if not found:
        raise InputError("no trace: a file, or NAME for NAME.0.et, NAME.1.et and so on", where=path)
    if len(found) > MAX_RANKS:
        raise InputError(f"{len(found)} files: {MAX_RANKS} ranks at most", where=path)
    if set(found) != set(range(len(found))):
        missing = min(set(range(len(found))) - set(found))
        raise InputError(f"the file of rank {missing} is missing", where=path)
    return [found[rank] for rank in range(len(found))]


def read_file(path: Path) -> bytes:
    """Return a file's bytes; decompress a gzip file. Raise InputError if the file is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if data[:2] == _GZIP:
        try:
            data = zlib.decompressobj(31).decompress(data, MAX_FILE_BYTES + 1)
        except zlib.error:
            raise InputError("it is damaged: gzip cannot unpack it", where=str(path)) from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"more than {MAX_FILE_BYTES >> 20} MiB", where=str(path))
    return data


def read_groups(path: str) -> dict[str, tuple[int, ...]]:
    """Return process groups from a file of ASTRA-sim: `{"1": [0, 1, 2, 3]}`. Raise InputError if invalid."""
    try:
        document = json.loads(read_file(Path(path)))
        return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in document.items()}
    except InputError:
        raise
    except DAMAGE:
        raise InputError('no process groups: {"1": [0, 1]} and so on', where=path) from None
