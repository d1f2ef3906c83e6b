"""A damaged recording.json is refused with an error of one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrclab.experiments.measure.recording import (
    CaptureCounts,
    OffsetSample,
    Recording,
    crc32_of,
    load_recording,
)
from mrclab.linux.errors import InputError

WHOLE = Recording({"h0": CaptureCounts(5, 5, 0)}, (OffsetSample(1, 2, 3),), ())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(WHOLE.to_dict()))
    assert load_recording(path) == WHOLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "3",
        "[]",
        "{}",
        "[" * 100_000,
        "\xff",
        json.dumps(WHOLE.to_dict())[:-1],
        json.dumps(WHOLE.to_dict() | {"captures": []}),
        json.dumps(WHOLE.to_dict() | {"captures": {"h0": 5}}),
        json.dumps(WHOLE.to_dict() | {"captures": {"h0": {"captured": 5}}}),
        json.dumps(WHOLE.to_dict() | {"clock_offsets": None}),
        json.dumps(WHOLE.to_dict() | {"clock_offsets": ["x"]}),
        json.dumps(WHOLE.to_dict() | {"clock_offsets": [{"at_ns": 1, "offset_ns": 2, "error_ns": 1e400}]}),
        json.dumps(WHOLE.to_dict() | {"loads": [{}]}),
    ],
)
def test_damage_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as refused:
        load_recording(path)
    assert str(refused.value).startswith(f"{path}: not a recording: ")
    assert "\n" not in str(refused.value)


def test_a_capture_that_is_not_as_it_was_written_is_named(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pcap" for name in ("h0", "h2", "gone")}
    for name in ("h0", "h2"):
        files[name].write_bytes(bytes(5_000_000))
    counts = {name: CaptureCounts(5, 5, 0, crc32_of(files["h0"])) for name in files}
    recording = Recording(counts, WHOLE.offsets, ())
    assert recording.changed(files) == []
    with files["h2"].open("r+b") as file:
        file.seek(4_000_000)
        file.write(b"\x01")
    assert recording.changed(files) == ["h2"]
    assert WHOLE.changed(files) == []
