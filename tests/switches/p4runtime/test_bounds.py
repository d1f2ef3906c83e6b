"""The amount of data that one client can make the server read and store is limited."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, cast

import pytest
from finsy.proto import p4r, rpc_status
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import BadInputError, SwitchError
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.ebpf.main import loopback
from mrclab.switches.ebpf.p4runtime import programs
from mrclab.switches.ebpf.p4runtime.device import MOST_ENTITY_BYTES, Device
from mrclab.switches.ebpf.p4runtime.programs import SPARE, Programs, json_of
from mrclab.switches.ebpf.p4runtime.schema import bind
from mrclab.switches.ebpf.p4runtime.server import P4RuntimeServer
from mrclab.switches.ebpf.p4runtime.status import (
    MOST_CHARACTERS,
    MOST_DETAILS_BYTES,
    Code,
    P4RuntimeError,
    batch_status,
)
from mrclab.switches.ebpf.plan import Compiled, SourceMap
from mrclab.switches.spec import SwitchSpec
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_kit import DATA, read_p4info

REASON = P4RuntimeError(Code.INVALID_ARGUMENT, "x" * 900)


@pytest.mark.timeout(20)
def test_a_number_without_an_end_is_refused_at_once() -> None:
    """The number must not be read completely. This would take quadratic time: 22 s for one megabyte."""
    with pytest.raises(BadInputError, match="is not BMv2 JSON"):
        json_of(b"\xff" * (8 << 20))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "config",
    [bytes(8 << 20), b"\x08\x00" * (4 << 20), b"\x0a\x00" * (4 << 20), b"{" + b" " * (17 << 20)],
    ids=["zeros", "numbers", "empty-fields", "too-large"],
)
def test_a_device_config_of_many_fields_is_refused_at_once(config: bytes) -> None:
    """Other clients wait while the server reads a config. So a config with too many fields is refused."""
    began = time.process_time()
    with pytest.raises(BadInputError, match="device config"):
        json_of(config)
    assert time.process_time() - began < 0.5


@given(st.binary(max_size=40))
def test_a_device_config_is_json_or_refused(config: bytes) -> None:
    with contextlib.suppress(BadInputError):
        assert json_of(config).lstrip()[:1] == b"{"


@pytest.mark.parametrize("parts", [1, 10, 100, 10_000])
def test_the_details_of_a_batch_fit_into_metadata(parts: int) -> None:
    packed = batch_status([None] * (parts - 1) + [REASON], f"Write failure: {REASON.message}")
    assert len(packed) <= MOST_DETAILS_BYTES
    status = rpc_status.Status.FromString(packed)
    assert "Write failure: xxx" in status.message
    assert len(status.details) in (parts, 0)


def test_few_details_are_whole() -> None:
    status = rpc_status.Status.FromString(batch_status([REASON, None], "failed"))
    detail = p4r.Error()
    status.details[0].Unpack(detail)
    assert detail.message == REASON.message


def test_a_message_quotes_no_more_than_a_reader_can_use() -> None:
    error = P4RuntimeError(Code.INVALID_ARGUMENT, "key " + "00" * (1 << 20))
    assert len(error.message) < MOST_CHARACTERS + 50
    assert error.message.endswith("(2097156 characters)")


def entity_of(size: int) -> p4r.Entity:
    entity = p4r.Entity()
    entity.table_entry.metadata = bytes(size)
    return entity


def device() -> Any:
    """Return a switch whose pipeline has no table. So every write and every read is refused."""
    found: Any = Device(SwitchSpec("s1", 1, {1: "s1"}), cast(Any, None))
    found.config = found.running = object()
    return found


def refused_write(entity: p4r.Entity) -> str:
    (error,) = device().write([p4r.Update(type=p4r.Update.INSERT, entity=entity)], atomic=True).errors
    return str(error.message)


def refused_read(entity: p4r.Entity) -> str:
    with pytest.raises(P4RuntimeError) as refused:
        list(device().read(entity))
    return refused.value.message


@pytest.mark.parametrize("refused", [refused_write, refused_read])
def test_an_entity_that_is_too_large_is_refused(refused: Callable[[p4r.Entity], str]) -> None:
    assert "not supported" in refused(entity_of(MOST_ENTITY_BYTES - 100))
    assert re.match(r"an entity of \d+ bytes", refused(entity_of(MOST_ENTITY_BYTES)))


def test_others_are_served_while_a_client_reads_many_wildcards() -> None:
    """Each of 400 wildcards asks for a whole table. The server keeps only one answer at a time."""
    wanted, each = 400, 600
    asked: list[p4r.Entity] = []

    class Full:
        """A fake switch with one full table."""

        def ready(self) -> None:
            pass

        def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
            asked.append(entity)
            return repeat(entity, each)

    class Switches:
        def device(self, number: int) -> Full:
            return Full()

    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(len(asked))
            await asyncio.sleep(0)

    async def scene() -> int:
        server: Any = P4RuntimeServer.__new__(P4RuntimeServer)
        server._switches = Switches()
        request = p4r.ReadRequest(entities=[p4r.Entity(table_entry=p4r.TableEntry())] * wanted)
        entities, serving = 0, asyncio.ensure_future(others())
        async for message in server.Read(request, None):
            entities += len(message.entities)
            assert len(asked) * each - entities <= each
        serving.cancel()
        return entities

    assert asyncio.run(scene()) == wanted * each
    assert set(range(1, wanted)) <= set(turns)


def test_programs_that_no_switch_has_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server must not keep the maps of programs that no switch uses any more."""
    made = []

    def compile_one(data: bytes) -> Any:
        made.append(data)
        if data == b"bad":
            raise SwitchError("no")
        return object()

    monkeypatch.setattr(programs, "compile_json", compile_one)

    async def scene() -> None:
        known = Programs()
        first = await known.get(b"0")
        with pytest.raises(SwitchError):
            await known.get(b"bad")
        others = [await known.get(str(n).encode()) for n in range(1, 10)]
        assert known.release([first]) == others[:-SPARE]
        assert known.release([first]) == []
        assert await known.get(b"0") is first
        assert await known.get(b"9") is others[-1]
        assert made.count(b"0") == 1
        await known.get(b"1")
        assert made.count(b"1") == 2

    asyncio.run(scene())


def test_a_failure_of_the_machine_is_not_kept_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [OSError(errno.ENOMEM, "Cannot allocate memory"), "compiled"]

    def compile_one(data: bytes) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(programs, "compile_json", compile_one)

    async def scene() -> None:
        known = Programs()
        with pytest.raises(OSError, match="Cannot allocate memory"):
            await known.get(b"0")
        assert await known.get(b"0") == "compiled"

    asyncio.run(scene())


@pytest.mark.parametrize("damage", ["condition", "table", "field"])
def test_a_program_that_contradicts_itself_is_refused_in_a_line(damage: str) -> None:
    raw = json.loads((DATA / "match.json").read_text())
    if damage == "condition":
        raw["pipelines"][0]["init_table"] = "nowhere"
    elif damage == "table":
        raw["pipelines"][0]["tables"][0]["actions"] = [7]
        raw["pipelines"][0]["tables"][0]["action_ids"] = [977]
    else:
        (table,) = [t for t in raw["pipelines"][0]["tables"] if t["key"]][:1]
        table["key"][0]["target"] = ["nothing", "at_all"]
    with pytest.raises(BadInputError) as refused:
        compile_json(json.dumps(raw))
    assert "\n" not in str(refused.value)


def test_brackets_without_an_end_are_no_program() -> None:
    with pytest.raises(BadInputError):
        compile_json(b'{"a":' + b"[" * 100_000)


def compiled(name: str) -> Compiled:
    program = read_program((DATA / f"{name}.json").read_bytes())
    return Compiled(program, translate(program).plan, b"", SourceMap(()))


@pytest.mark.slow
def test_a_table_that_p4c_left_out_of_the_config_is_taken_as_bmv2_does() -> None:
    info = read_p4info(DATA / "match.p4info.txtpb")
    whole = bind(info, compiled("match"))
    extra = info.tables.add()
    extra.CopyFrom(info.tables[0])
    extra.preamble.id, extra.preamble.name = 0x02FFFFFF, "ingress.unreachable"
    with_extra = bind(info, compiled("match"))
    assert with_extra.tables.keys() == whole.tables.keys()
    with pytest.raises(P4RuntimeError, match="no table"):
        with_extra.table(extra.preamble.id)


def test_the_p4info_of_another_program_is_still_refused() -> None:
    with pytest.raises(P4RuntimeError, match="differ"):
        bind(read_p4info(DATA / "match.p4info.txtpb"), compiled("multicast"))


@pytest.mark.parametrize("port", [65_536, 99_999])
def test_a_port_that_there_is_not_is_refused(port: int) -> None:
    with pytest.raises(BadInputError, match="there is no port above 65535"):
        loopback(f"127.0.0.1:{port}")
