"""Lab 9: the model of a NIC that checks C programs, its sandbox, and the same program on a fabric."""

from __future__ import annotations

import random
import shutil
from collections import deque
from pathlib import Path

import pytest

from mrclab.labs import student
from mrclab.labs.catalogue import Outcome, find, folder_of
from mrclab.labs.judge import judge
from mrclab.labs.programming import (
    LKEY,
    REMOTE,
    RKEY,
    SIGNALED,
    WRITE_WITH_IMM,
    ReceivingNic,
    SendingNic,
    Setting,
    Wrong,
    memory_of,
    sources_of,
)
from mrclab.labs.sandbox.program import CompileError, Program, ProgramEnd
from tests.support.command import Up
from tests.support.native_programs import end, needs_compiler, running

LAB = find("9")
PATIENCE_S = 120


def sends(setting: Setting, seed: int) -> int:
    """Post requests as a correct program does. Return the program's exit code."""
    nic, rng = SendingNic(setting), random.Random(seed)
    memory = memory_of(setting)
    waiting = deque(range(setting.messages))
    under_way, dead, done = [0] * setting.qps, set[int](), set[int]()
    while len(done) < setting.messages and len(dead) < setting.qps:
        for qp in set(range(setting.qps)) - dead:
            while waiting and under_way[qp] < setting.depth:
                number = waiting.popleft()
                data = memory[number * setting.message_bytes :][: setting.message_bytes]
                start = REMOTE + number * setting.message_bytes
                words = (qp, number, WRITE_WITH_IMM, SIGNALED, number, start, RKEY, 1, LKEY, len(data), 1)
                assert nic.post_send(words, data) == 0
                under_way[qp] += 1
        for completion in nic.poll(rng.randint(1, 5)):
            under_way[completion.qp] -= 1
            if completion.status:
                dead.add(completion.qp)
                waiting.append(completion.wr_id)
            else:
                done.add(completion.wr_id)
    code = 0 if len(done) == setting.messages else -1
    nic.ended(code)
    return code


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fail", [{}, {0: 0}, {1: 4, 2: 9}, {0: 1, 1: 2, 2: 3}])
def test_a_right_sender_passes_in_every_order(seed: int, fail: dict[int, int]) -> None:
    setting = Setting(qps=3, length=40_000, fail=fail, seed=seed)
    assert sends(setting, seed) == (-1 if len(fail) == 3 else 0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fail", [{}, {0: 2}, {0: 2, 1: 3, 2: 4}])
def test_a_right_receiver_passes_in_every_order(seed: int, fail: dict[int, int]) -> None:
    setting = Setting(receiving=True, qps=3, length=40_000, fail=fail, seed=seed)
    nic = ReceivingNic(setting)
    for qp in range(setting.qps):
        for wr_id in range(setting.depth):
            nic.post_recv(qp, wr_id)
    nic.started()
    come, dead = set[int](), set[int]()
    while len(come) < setting.messages and len(dead) < setting.qps:
        for completion in nic.poll(4):
            if completion.status:
                dead.add(completion.qp)
            else:
                come.add(completion.imm)
                nic.post_recv(completion.qp, 1)
    code = 0 if len(come) == setting.messages else -1
    nic.ended(code)
    assert code == (-1 if len(fail) == 3 else 0)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({2: 0}, "IBV_WR_RDMA_WRITE_WITH_IMM"),
        ({3: 0}, "IBV_SEND_SIGNALED"),
        ({10: 0}, "inside of t->memory"),
        ({6: 1}, "two keys"),
        ({5: REMOTE - 1}, "not within its memory"),
        ({4: 1 << 24}, "network byte order"),
    ],
)
def test_a_wrong_request_is_named(change: dict[int, int], hint: str) -> None:
    words = [0, 0, WRITE_WITH_IMM, SIGNALED, 0, REMOTE, RKEY, 1, LKEY, 8, 1]
    for at, value in change.items():
        words[at] = value
    with pytest.raises(Wrong, match=hint):
        SendingNic(Setting()).post_send(words, bytes(8))


def _outcomes(tmp_path: Path, text: str) -> list[Outcome]:
    folder = tmp_path / "mine"
    student.solution(LAB, folder)
    (folder / "transfer.c").write_text(text)
    return list(judge(folder_of(LAB) / "check.py", folder, LAB.spec.check_limit_s))


def _program(text: str, limit_s: float = 600) -> Program:
    sources = sources_of(folder_of(LAB) / "start", b"")
    return Program(
        {name: data for name, data in sources.items() if name.endswith(".h")} | {"a.c": text.encode()},
        limit_s,
    )


def test_a_program_that_cannot_be_compiled_gets_the_compiler_s_line(tmp_path: Path) -> None:
    outcomes = _outcomes(tmp_path, "int send_all(void) { return x; }\n")
    assert "transfer.c:1" in outcomes[0].hint
    assert not any(outcome.tried for outcome in outcomes[1:])


def test_the_compiler_reads_no_file_of_the_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret = 4711;\n")
    for source in (
        f'#include "{secret}"\n',
        f'__asm__(".incbin \\"{secret}\\"");\nint main(void) {{ return 0; }}\n',
    ):
        with pytest.raises(CompileError) as error:
            _program(source).close()
        assert "4711" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("return 3;", "ended before it was done"),
        ("*(volatile int *)8 = 1; return 0;", "ended by signal 11"),
    ],
)
def test_what_becomes_of_a_program_is_said(body: str, how: str) -> None:
    with _program("int main(void) { " + body + " }\n") as program, pytest.raises(ProgramEnd, match=how):
        program.line()


def test_a_program_without_end_is_ended() -> None:
    with (
        pytest.raises(ProgramEnd, match="did not end within"),
        _program("int main(void) { for (;;) ; }\n", 5) as program,
    ):
        program.line()


def test_a_program_has_no_rights() -> None:
    """The program can start no process, read no file of the machine, and use no network."""
    source = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    printf("%d %d %d\\n", fork() < 0, open("/etc/passwd", O_RDONLY) < 0, (int)getuid());
    return 0;
}
"""
    with _program(source) as program:
        assert program.line() == "1 1 65534"


@pytest.mark.root
@needs_compiler
def test_the_solution_is_right_on_a_fabric_whose_link_is_cut(tiny: Up, tmp_path: Path) -> None:
    for part in ("start", "solution"):
        shutil.copytree(folder_of(LAB) / part, tmp_path, dirs_exist_ok=True)
    tiny.mrclab.ok("exec", "h0", "--", "sh", "-c", f"cd {tmp_path} && sh build.sh")
    transfer = str(tmp_path / "transfer")
    with (
        running(tiny, "h2", "--", transfer, "receive", "18520") as receiver,
        running(tiny, "h0", "--", transfer, "send", "18520", "h2", "pause") as sender,
    ):
        assert sender.stdout is not None
        said = [sender.stdout.readline()]
        while said[-1] not in ("half\n", ""):
            said.append(sender.stdout.readline())
        tiny.mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-0")
        try:
            ends, _ = sender.communicate("\n", timeout=PATIENCE_S)
            received = end(receiver)
        finally:
            tiny.mrclab.ok("restore", "--all")
    sent = [line for line in "".join([*said, ends]).splitlines() if line != "half"]
    assert sent == [f"half {half}: send_all returned 0" for half in (0, 1)]
    assert received.splitlines() == [
        f"half {half}: receive_all returned 0, every byte is right" for half in (0, 1)
    ]
    assert (sender.returncode, receiver.returncode) == (0, 0)
