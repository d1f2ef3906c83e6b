"""Results as data frames: ``mrclab.results.load(DIR)`` needs pandas (``pip install 'mrclab[labs]'``).

    from mrclab.results import load

    run = load("results/link-kill/20300101-120000")
    run.trials.groupby("transport")["recovered_us"].median()

``load_many`` loads several runs. Its frames also have a column ``run``.

All frames have the columns ``transport`` and ``repetition``, so that they can be joined. A column whose name
ends in ``_us`` has microseconds. A trial's times begin at its fault, other times at the start of the
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mrclab.experiments.measure.events import load_events
from mrclab.experiments.measure.pcap import PACKET, Packets, read_pcap
from mrclab.experiments.measure.recording import load_recording
from mrclab.experiments.result.file import load_result, refused_if_damaged
from mrclab.linux.errors import InputError

_FAULT = {"kind": "fault", "where": "where", "direction": "direction", "at_us": "at_us"}
_KEY = ("transport", "repetition")
TRIAL_COLUMNS = (*_KEY, "trial", *_FAULT.values(), "fault_ns")
SAMPLE_COLUMNS = (*_KEY, "metric", "value")
SERIES_COLUMNS = (*_KEY, "t_us", "bytes", "lost", "mbps")
EVENT_COLUMNS = (*_KEY, "log", "t_ns", "name")
PACKET_COLUMNS = (*_KEY, "host", *(PACKET.names or ()), "is_data")


@dataclass(frozen=True)
class Results:
    """One run. ``result`` is the content of result.json. Data frames are read from the run's files."""

    directory: Path
    result: Mapping[str, Any]

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The measured faults, one row each: what broke (``fault``, ``where``), and all times and counts."""
        return _frame(self._trial_rows(), TRIAL_COLUMNS)

    def _trial_rows(self) -> Iterator[dict[str, Any]]:
        for trial in self.result["trials"]:
            plain = {key: value for key, value in trial.items() if not isinstance(value, dict | list)}
            plain |= {key: math.nan for key, value in plain.items() if value is None}
            fault = trial["fault"]
            plain["fault_ns"] = (fault["t_before_ns"] + fault["t_after_ns"]) // 2
            yield plain | {column: fault.get(key) for key, column in _FAULT.items()}

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The values of all metrics, such as goodput, in the columns ``metric`` and ``value``."""
        return _frame(self._sample_rows(), SAMPLE_COLUMNS)

    def _sample_rows(self) -> Iterator[dict[str, Any]]:
        for name, repetition, sample in self._parts("samples"):
            for metric, values in sample["metrics"].items():
                for value in values:
                    yield {"transport": name, "repetition": repetition, "metric": metric, "value": value}

    @cached_property
    def series(self) -> pd.DataFrame:
        """Delivered bytes and lost packets in bins of time. ``t_us`` is the start of a bin."""
        parts = [
            pd.DataFrame(
                {
                    "transport": name,
                    "repetition": repetition,
                    "t_us": data["start_us"] + np.arange(len(data["bytes"])) * data["bin_us"],
                    "bytes": data["bytes"],
                    "lost": data["lost"],
                    "mbps": np.asarray(data["bytes"], dtype=float) * 8 / data["bin_us"],
                }
            )
            for name, repetition, data in self._parts("series")
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(SERIES_COLUMNS))

    @cached_property
    def events(self) -> pd.DataFrame:
        """The logged events (docs/event-log.md). ``log`` names a host or rank; ``t_ns``: CLOCK_MONOTONIC."""
        return _frame(self._event_rows(), EVENT_COLUMNS)

    def _event_rows(self) -> Iterator[dict[str, Any]]:
        for name, repetition, directory in self._directories():
            for path in sorted((directory / "events").glob("*.jsonl")):
                key = {"transport": name, "repetition": repetition, "log": path.stem}
                for event in load_events(path).events:
                    yield key | {"t_ns": event.t_ns, "name": event.name} | dict(event.fields)

    @cached_property
    def packets(self) -> pd.DataFrame:
        """The captured packets, one row each, if the run kept its captures (``measure: {capture: true}``).

        ``t_ns`` is on the clock of faults and events (CLOCK_MONOTONIC), and ``is_data`` marks writes. The
        other columns are described at `mrclab.experiments.measure.pcap.Packets`.
        """
        parts = []
        for name, repetition, directory in self._directories():
            recording = directory / "recording.json"
            clock = load_recording(recording).clock if recording.is_file() else None
            for path in sorted((directory / "captures").glob("*.pcap")):
                rows = read_pcap(path).rows
                columns: dict[str, Any] = {"transport": name, "repetition": repetition, "host": path.stem}
                columns |= {field: rows[field] for field in PACKET.names or ()}
                if clock is not None:
                    columns["t_ns"] = clock.to_monotonic(rows["t_ns"])
                columns["is_data"] = Packets(rows, len(rows), 0, False).is_data
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(PACKET_COLUMNS))

    def _parts(self, what: str) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        for name, transport in self.result["transports"].items():
            for part in transport.get(what, ()):
                yield name, part["repetition"], part

    def _directories(self) -> Iterator[tuple[str, int, Path]]:
        for name, repetition, _ in self._parts("samples"):
            yield name, repetition, self.directory / f"{name}-{repetition}"


@dataclass(frozen=True)
class ManyResults:
    """Several runs. Their frames have a first column ``run`` with the name of the run."""

    runs: Mapping[str, Results]

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The measured faults of all runs, one row each."""
        return self._joined("trials")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The values of all metrics of all runs."""
        return self._joined("samples")

    @cached_property
    def series(self) -> pd.DataFrame:
        """Delivered bytes and lost packets of all runs, in bins of time."""
        return self._joined("series")

    @cached_property
    def events(self) -> pd.DataFrame:
        """The logged events of all runs."""
        return self._joined("events")

    def _joined(self, name: str) -> pd.DataFrame:
        frames = {run: getattr(found, name) for run, found in self.runs.items()}
        parts = [frame.assign(run=run) for run, frame in frames.items() if len(frame)]
        whole = pd.concat(parts, ignore_index=True) if parts else next(iter(frames.values())).assign(run="")
        return whole[["run", *(column for column in whole.columns if column != "run")]]


def load_many(directories: Sequence[Path | str] | Mapping[str, Path | str]) -> ManyResults:
    """Return the results in several directories, by path or by the keys of a mapping.

    Raise InputError if a directory has no result, or if there are no directories.
    """
    if not isinstance(directories, Mapping):
        directories = {str(directory): directory for directory in directories}
    if not directories:
        raise InputError("no directories of results: give at least one")
    return ManyResults({name: load(directory) for name, directory in directories.items()})


def load(directory: Path | str) -> Results:
    """Return the results in a directory. Raise InputError if the results are missing or damaged.

    Packets and events are read at their first use, because captures and logs may be large.
    """
    path = Path(directory)
    result = load_result(path)
    found = Results(path if path.is_dir() else path.parent, result)
    with refused_if_damaged(path):
        _ = found.trials, found.samples, found.series
    return found


def _frame(rows: Iterator[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """Return a frame that begins with these columns, even if it has no rows."""
    frame = pd.DataFrame(list(rows))
    others = [column for column in frame.columns if column not in columns]
    return frame.reindex(columns=[*columns, *others])
