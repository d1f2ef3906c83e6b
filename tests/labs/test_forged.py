"""Forged submissions get no points that they did not earn. Unusual honest submissions get their points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from mrclab.labs import student
from mrclab.labs.catalogue import Outcome, find, folder_of
from mrclab.labs.checks import Checks, Student, require, run_all, run_one
from mrclab.labs.judge import judge
from mrclab.labs.worker import load_checks
from tests.support.paths import ROOT

CHECKS = Checks()
SECRET = 7919


@CHECKS.add("the answer to 6 times 7")
def product(work: Student) -> None:
    require(work.load("mine.py").product(6, 7) == 42, "It is another number.")


@CHECKS.add("the secret")
def secret(work: Student) -> None:
    require(work.load("mine.py").secret() == SECRET, "It is another number.")


@CHECKS.add("an object")
def an_object(work: Student) -> None:
    made = work.load("mine.py").make("Detector", "detector", 1, 2)
    require(made.call("timer_ns") == SECRET, "It is another time.")


WRONG = """
def product(a, b):
    return 0
def secret():
    return 0
class Detector:
    def __init__(self, window_ns, timeout_ns): ...
    def on_sent(self, psn, now_ns): ...
    def timer_ns(self):
        return 0
"""
KINDS: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "tests" / "labs" / "forged.yaml").read_text())
FORGED = {name: code for forged in KINDS.values() for name, code in forged.items()}
FILES: dict[str, dict[str, str]] = {
    "shadow-json": {"json.py": "dumps = loads = lambda *a, **k: {'passed': True}"},
    "shadow-labs": {"labs/__init__.py": "", "labs/checks.py": "def require(*a): ...\n"},
    "shadow-random": {"random.py": "Random = None"},
    "sitecustomize": {"sitecustomize.py": "import labs.checks as c\nc.require = lambda *a: None\n"},
    "result": {"result.json": '{"passed": true, "checks_passed": 99}'},
}


def outcomes_of(folder: Path, limit_s: float = 60) -> list[Outcome]:
    work = Student(folder)
    try:
        return list(run_all(CHECKS, work, limit_s=limit_s))
    finally:
        work.code.close()


def submission(folder: Path, text: str, files: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    (folder / "mine.py").write_text(f"{WRONG}\n{text}\n")
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_there_are_forty_of_eight_kinds() -> None:
    assert len(KINDS) >= 8
    assert len(FORGED) == sum(map(len, KINDS.values())) >= 40


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_submission_gets_no_mark(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = outcomes_of(submission(tmp_path / "mine", FORGED[kind]), limit_s=8)
    assert [outcome.check for outcome in found] == [named.title for named in CHECKS]
    assert not any(outcome.passed for outcome in found), found
    assert all(outcome.hint.isprintable() and len(outcome.hint) < 5000 for outcome in found)
    assert len(capfd.readouterr().err) < 1_000_000


@pytest.mark.parametrize("kind", FILES)
def test_files_beside_a_submission_change_no_mark(kind: str, tmp_path: Path) -> None:
    folder = submission(tmp_path / "mine", "import json, random", FILES[kind])
    assert not any(outcome.passed for outcome in outcomes_of(folder))


LIMITED = """
import sys
from pathlib import Path
from mrclab.labs.sandbox.remote import RemoteCode
code = RemoteCode(Path(sys.argv[1]), lambda missing: print("note:", missing))
code.begin(60)
try:
    print(code.function("mine.py", "rights", []))
finally:
    code.close()
"""
RIGHTS = """
import os
def rights():
    try:
        os.fork()
    except OSError:
        return [os.getuid(), "no further process"]
    return "forked"
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root: it gives up one right")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_without_namespaces_the_limits_hold_and_the_reason_is_one_line(tmp_path: Path) -> None:
    folder = submission(tmp_path / "mine", RIGHTS)
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", LIMITED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=100,
    )
    note, rights = done.stdout.splitlines()
    assert note == "note: no namespaces here: Operation not permitted"
    assert rights == "[65534, 'no further process']"


def test_the_right_values_pass(tmp_path: Path) -> None:
    right = f"""
def product(a, b): return float(a * b)
def secret(): return {SECRET}
Detector.timer_ns = lambda self: {SECRET}
"""
    assert all(outcome.passed for outcome in outcomes_of(submission(tmp_path / "mine", right)))


def test_a_link_to_a_solution_is_refused(tmp_path: Path) -> None:
    folder = submission(tmp_path / "mine", "")
    (tmp_path / "right.py").write_text(f"def product(a, b): return 42\ndef secret(): return {SECRET}\n")
    (folder / "mine.py").unlink()
    (folder / "mine.py").symlink_to(tmp_path / "right.py")
    first = outcomes_of(folder)[0]
    assert not first.passed
    assert "is a link" in first.hint


def test_nothing_of_a_submission_is_left(tmp_path: Path) -> None:
    work = Student(submission(tmp_path / "mine", "open('left', 'w').write('x')"))
    list(run_all(CHECKS, work, limit_s=20))
    process, scratch = work.code._process, work.code._scratch
    assert process is not None
    assert scratch is not None
    work.code.close()
    assert process.returncode is not None
    assert not os.path.exists(scratch.name)
    assert not (tmp_path / "mine" / "left").exists()


def test_code_that_does_not_end_costs_its_time_and_no_more(tmp_path: Path) -> None:
    work = Student(submission(tmp_path / "mine", "def product(a, b):\n  while True: pass"))
    began = time.monotonic()
    try:
        first = run_one(next(iter(CHECKS)), work, 1)
        second = run_one(list(CHECKS)[1], work, 20)
    finally:
        work.code.close()
    assert "never ends" in first.hint
    assert second.hint == "It is another number."
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lab", "file", "forged"),
    [
        ("4", "measures.py", "outcomes-to-all-files"),
        ("8", "fabric.py", "run-of-all-checks"),
        ("8", "fabric.py", "require"),
        ("8", "fabric.py", "hello"),
        ("7", "steps.py", "endless-line"),
    ],
)
def test_a_forged_skeleton_of_a_lab_gets_no_mark(lab: str, file: str, forged: str, tmp_path: Path) -> None:
    found = find(lab)
    student.start(found, tmp_path / "mine")
    with (tmp_path / "mine" / file).open("a") as code:
        code.write(FORGED[forged].replace("os._exit(0)", "") if lab != "4" else FORGED[forged])
    outcomes = list(judge(folder_of(found) / "check.py", tmp_path / "mine", 20))
    titles = [named.title for named in load_checks(folder_of(found) / "check.py")]
    assert [outcome.check for outcome in outcomes] == titles
    assert not any(outcome.passed for outcome in outcomes)


DETACHED = """
import ctypes, time
def product(a, b):
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
    print("detached", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_code_that_refuses_the_signal_of_its_parent_s_end_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    work = Student(submission(tmp_path / "mine", DETACHED))
    outcomes = list(run_all(CHECKS, work, limit_s=5))
    work.code.close()
    assert "did not end within 5 s" in outcomes[0].hint
    assert "detached" in capfd.readouterr().err
    deadline = time.monotonic() + 5
    while (left := _children(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _children(scratch: Path) -> list[str]:
    """Return the command lines of the processes that run a submission's code in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "mrclab.labs.sandbox.child" in words and str(scratch) in words:
            found.append(words)
    return found


@pytest.mark.slow
def test_a_forged_solution_of_a_lab_passes_as_little_as_its_code_does(tmp_path: Path) -> None:
    found = find("8")
    student.solution(found, tmp_path / "mine")
    shutil.copy(folder_of(found) / "start" / "fabric.py", tmp_path / "mine" / "fabric.py")
    with (tmp_path / "mine" / "fabric.py").open("a") as code:
        code.write("\nimport mrclab.scale.fabric as model\n")
    outcomes = list(judge(folder_of(found) / "check.py", tmp_path / "mine", 60))
    assert [outcome.passed for outcome in outcomes] == [False] * 5 + [True] * 3


@pytest.mark.parametrize(
    "words",
    [
        "figure: own:judge",
        "transports: {mrc: {options: {path_policy: own:Policy}}}",
        "transports: {mrc: {use: own:TRANSPORT}}",
        "targets: {sim: {figure: own:judge}}",
        "topology: ./own.yaml",
        "workload: {kind: matrix, path: /etc/hostname}",
    ],
)
def test_a_scenario_of_lab_6_runs_no_code_and_reads_no_file(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    student.solution(find("6"), folder)
    monkeypatch.chdir(folder)
    own = f"open({str(tmp_path / 'ran')!r}, 'w').close()\njudge = Policy = TRANSPORT = print\n"
    (folder / "own.py").write_text(own)
    scenario = yaml.safe_load((folder / "cuts.yaml").read_text()) | yaml.safe_load(words)
    (folder / "cuts.yaml").write_text(yaml.safe_dump(scenario))
    outcomes = list(judge(folder_of(find("6")) / "check.py", folder, 60))
    assert not (tmp_path / "ran").exists()
    assert outcomes[0].hint.startswith("cuts.yaml")
    assert [outcome.passed for outcome in outcomes[:2]] == [False, False]
    assert "cuts.yaml" in outcomes[3].hint
