"""The verbs between two hosts of a running testbed, polled and in an event loop."""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.hosts.verbs import CompletionQueue, Context, MemoryRegion, Opcode, QpState, QueuePair, Status
from mrclab.linux.namespaces import inside
from tests.support.command import Up
from tests.support.paths import ROOT

pytestmark = pytest.mark.root

DOCUMENT = ROOT / "docs" / "api.md"
SIZE = 1 << 20
DEADLINE_S = 120


class End:
    """One host's NIC with a completion queue, a queue pair, and memory for the peer."""

    def __init__(self, up: Up, host: str, seed: int) -> None:
        with inside(up.host_namespace(host)):
            self.nic = Context.open(up.fabric, host, rng=random.Random(seed))
        self.cq: CompletionQueue = self.nic.create_cq()
        self.qp: QueuePair = self.nic.create_qp(self.cq)
        self.memory = bytearray(SIZE)
        self.region: MemoryRegion = self.nic.reg_mr(self.memory)


@pytest.fixture
def ends(tiny: Up) -> Iterator[tuple[End, End]]:
    a, b = End(tiny, "h0", 1), End(tiny, "h3", 2)
    # The attributes go through JSON, as between two programs.
    a.qp.connect(json.loads(json.dumps(b.qp.attributes())))
    b.qp.connect(json.loads(json.dumps(a.qp.attributes())))
    yield a, b
    a.nic.close()
    b.nic.close()


def poll_both(a: End, b: End, sent: int, received: int) -> None:
    """Let both NICs work until their queues have this many completions."""
    deadline = time.monotonic() + DEADLINE_S
    while len(a.cq) < sent or len(b.cq) < received:
        assert time.monotonic() < deadline, (len(a.cq), len(b.cq))
        for end in (a, b):
            end.nic.progress(time.monotonic_ns() + 100_000)


def test_writes_land_and_complete_in_order(ends: tuple[End, End]) -> None:
    a, b = ends
    assert a.qp.state is QpState.RTS
    data = random.Random(3).randbytes(SIZE)
    half = SIZE // 2
    a.qp.post_write(11, data[:half], b.region.address, b.region.rkey)
    a.qp.post_write_imm(12, data[half:], b.region.address + half, b.region.rkey, 0xFFFF_FFFF)
    poll_both(a, b, sent=2, received=1)
    whole = b.memory == data  # pytest would take minutes to show the difference of so many bytes
    assert whole
    first, second = a.cq.poll()
    assert [(c.wr_id, c.opcode, c.byte_len, c.ok) for c in (first, second)] == [
        (11, Opcode.RDMA_WRITE, half, True),
        (12, Opcode.RDMA_WRITE, half, True),
    ]
    (got,) = b.cq.poll()
    assert (got.opcode, got.imm_data, got.byte_len) == (Opcode.RECV_RDMA_WITH_IMM, 0xFFFF_FFFF, half)
    assert (got.wr_id, got.qp_num, second.qp_num) == (None, b.qp.qp_num, a.qp.qp_num)


def test_a_write_out_of_bounds_fails_and_flushes_what_comes_after(ends: tuple[End, End]) -> None:
    a, b = ends
    a.qp.post_write(1, b"x" * 100, b.region.address + SIZE - 50, b.region.rkey)
    a.qp.post_write(2, b"y", b.region.address, b.region.rkey)
    poll_both(a, b, sent=2, received=0)
    failed, flushed = a.cq.poll()
    assert (failed.wr_id, failed.status) == (1, Status.REMOTE_OPERATION_ERROR)
    assert (flushed.wr_id, flushed.status) == (2, Status.FLUSHED)
    assert a.qp.state is QpState.ERR
    assert any(type(event).__name__ == "QpError" for event in a.nic.async_events)
    assert bytes(b.memory[-50:]) == bytes(50)


def test_a_write_to_a_region_that_is_closed_fails(ends: tuple[End, End]) -> None:
    a, b = ends
    b.nic.dereg_mr(b.region)
    a.qp.post_write(1, b"x", b.region.address, b.region.rkey)
    poll_both(a, b, sent=1, received=0)
    assert a.cq.poll()[0].status is Status.REMOTE_OPERATION_ERROR
    assert b.memory[0] == 0


def test_queue_pairs_have_queues_of_their_own(tiny: Up, ends: tuple[End, End]) -> None:
    a, b = ends
    send_cq, recv_cq = a.nic.create_cq(), b.nic.create_cq()
    mine, theirs = a.nic.create_qp(send_cq), b.nic.create_qp(b.cq, recv_cq)
    assert mine.state is QpState.RESET
    mine.connect(theirs.attributes())
    theirs.connect(mine.attributes())
    mine.post_write_imm(5, b"five", b.region.address, b.region.rkey, 5)
    deadline = time.monotonic() + DEADLINE_S
    while not (len(send_cq) and len(recv_cq)):
        assert time.monotonic() < deadline
        a.nic.progress(time.monotonic_ns() + 100_000)
        b.nic.progress(time.monotonic_ns() + 100_000)
    assert (len(a.cq), len(b.cq)) == (0, 0)
    a.nic.destroy_qp(mine)
    with pytest.raises(KeyError):
        mine.post_write(6, b"", 0, 0)
    assert [c.wr_id for c in send_cq.poll()] == [5]


def test_tasks_await_completions(ends: tuple[End, End]) -> None:
    a, b = ends
    messages = 50

    async def both() -> tuple[list[int | None], list[int | None]]:
        async def send() -> list[int | None]:
            done: list[int | None] = []
            for number in range(messages):
                a.qp.post_write_imm(number, bytes([number]) * 9000, b.region.address, b.region.rkey, number)
                done += [c.wr_id for c in await a.cq.wait()]
            return done

        async def take_one() -> int | None:
            (completion,) = await b.cq.wait(1)
            return completion.imm_data

        # There are as many tasks as completions, and all wait at once. Each task gets one completion.
        taken = asyncio.gather(*(take_one() for _ in range(messages)))
        return await asyncio.wait_for(send(), DEADLINE_S), await asyncio.wait_for(taken, DEADLINE_S)

    sent, received = asyncio.run(both())
    assert sent == list(range(messages))
    assert sorted(n for n in received if n is not None) == list(range(messages))
    assert b.memory[:9000] == bytes([messages - 1]) * 9000


def test_writes_may_be_awaited_one_by_one_or_many_at_once(ends: tuple[End, End]) -> None:
    a, b = ends

    async def program() -> list[int | None]:
        first = await a.qp.write(b"first", b.region.address, b.region.rkey)
        assert (first.ok, first.byte_len, first.opcode, first.wr_id) == (True, 5, Opcode.RDMA_WRITE, None)
        a.qp.post_write(7, b"posted", b.region.address + 100, b.region.rkey)
        many = [
            a.qp.write(bytes([n]) * 5000, b.region.address + 10_000 * n, b.region.rkey, imm_data=n)
            for n in range(1, 21)
        ]
        assert all(done.ok for done in await asyncio.gather(*many))
        assert [done.wr_id for done in await a.cq.wait()] == [7], "what is awaited is not in the queue"
        taken: list[int | None] = []
        while len(taken) < 20:
            taken += [done.imm_data for done in await b.cq.wait()]
        gives_up = asyncio.create_task(a.qp.write(b"late", b.region.address, b.region.rkey))
        await asyncio.sleep(0)
        gives_up.cancel()
        assert (await a.qp.write(b"last!", b.region.address, b.region.rkey)).ok
        beyond = await a.qp.write(b"?", b.region.address + SIZE, b.region.rkey)
        assert beyond.status is Status.REMOTE_OPERATION_ERROR
        return taken

    async def both() -> list[int | None]:
        b.cq._context.enter_loop()
        return await asyncio.wait_for(program(), DEADLINE_S)

    assert asyncio.run(both()) == list(range(1, 21))
    assert bytes(b.memory[:5]) == b"last!"
    assert bytes(b.memory[200_000:205_000]) == bytes([20]) * 5000


def test_a_task_that_gives_up_waiting_takes_no_completion(ends: tuple[End, End]) -> None:
    a, b = ends

    async def one_gives_up() -> int | None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(b.cq.wait(), 0.01)
        waiting = asyncio.create_task(b.cq.wait(1))
        a.nic.enter_loop()
        a.qp.post_write_imm(1, b"", b.region.address, b.region.rkey, 7)
        (completion,) = await asyncio.wait_for(waiting, DEADLINE_S)
        return completion.imm_data

    assert asyncio.run(one_gives_up()) == 7


def test_the_documented_example_prints_what_it_says(tiny: Up, tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(program.splitlines()) <= 50
    script, channel = tmp_path / "write.py", tmp_path / "write.sock"
    script.write_text(program)

    def start(what: str, host: str) -> "subprocess.Popen[str]":
        namespace = ["ip", "netns", "exec", tiny.host_namespace(host)]
        return subprocess.Popen(
            [*namespace, sys.executable, str(script), what, host, str(channel)],
            env={**tiny.mrclab.environment, "PYTHONPATH": str(DOCUMENT.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    server = start("serve", "h3")
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not channel.exists():
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.01)
        client = start("write", "h0")
        said, _ = client.communicate(timeout=DEADLINE_S)
        served, _ = server.communicate(timeout=DEADLINE_S)
    finally:
        server.kill()
    documented = text.replace("h6: ", "h3: ")
    assert (client.returncode, server.returncode) == (0, 0), said + served
    assert served.strip() in documented
    assert said.strip() in documented
    assert "first bytearray(b'hello')" in served
