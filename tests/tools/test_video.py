"""The captioned video: its captions, and its copy in the documentation."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

from mrclab.play.replays import SCRIPTS
from tests.support.paths import ROOT


@pytest.fixture
def video(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("video")


def test_every_replay_has_captions_in_the_order_of_their_times(video: ModuleType) -> None:
    assert set(video.CAPTIONS) == {script.name for script in SCRIPTS}
    for script in SCRIPTS:
        times = [caption.from_us for caption in video.CAPTIONS[script.name]]
        assert times == sorted(set(times))
        assert times[0] == 0
        assert times[-1] < script.until_us


def test_a_caption_is_shown_until_the_next_one(video: ModuleType) -> None:
    captions = (video.Caption(10, "a"), video.Caption(20, "b"))
    assert [video.caption_at(captions, t_us) for t_us in (0, 10, 19.9, 20, 99)] == ["", "a", "a", "b", "b"]


def test_equal_pictures_make_one_cue(video: ModuleType) -> None:
    assert video.web_vtt(["", "a", "a", "b"]) == (
        "WEBVTT\n\n00:00:00.200 --> 00:00:00.600\na\n\n00:00:00.600 --> 00:00:00.800\nb\n"
    )
    assert video.stamp(61.5) == "00:01:01.500"


def test_the_video_of_the_gallery_is_small_and_has_todays_captions(video: ModuleType) -> None:
    assert 100_000 < (ROOT / "docs/img/mrclab.webm").stat().st_size < video.MOST_BYTES
    text = (ROOT / "docs/img/mrclab.vtt").read_text(encoding="utf-8")
    shown = re.findall(r"-->.*\n(.+)\n", text)
    assert shown == [c.words for script in SCRIPTS for c in video.CAPTIONS[script.name]]
    assert "img/mrclab.webm" in (ROOT / "docs/gallery.md").read_text(encoding="utf-8")


def test_a_lacking_program_is_named_in_a_line(
    video: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(video.shutil, "which", lambda program: None)
    with pytest.raises(SystemExit, match="no ffmpeg and no chromium here: apt install ffmpeg chromium"):
        video.main(tmp_path)
