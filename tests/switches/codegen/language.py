"""Shared parts of the tests of language constructs: frames of hand-made programs, a model and a bench."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, settings

from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.handmade import assign, field, if_, named, number, op
from tests.support.switch_bench import Bench, bench_of

Code = grpc.StatusCode
root = pytest.mark.root
SOME = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OUT = assign(field("standard_metadata", "egress_spec"), number(2))
PROBLEM = assign(field("key", "problem"), field("standard_metadata", "parser_error"))
# The kernel accepts no short frames, so every frame begins with these fields.
KEY = (("what", 8), ("n", 8), ("problem", 8), ("m", 8), ("pad", 160))


def begin(what: int, n: int = 0, m: int = 0) -> bytes:
    return bytes([what, n, 0, m]) + bytes(20)


def when(what: int, *then: object) -> list[object]:
    return if_(op("==", field("key", "what"), number(what)), *then)


def header(name: str) -> dict[str, object]:
    return named("header", name)


def model_of(text: str) -> Interpreter:
    return Interpreter(read_program(text))


def bench(factory: pytest.TempPathFactory, text: str) -> Iterator[Bench]:
    path = factory.mktemp("program") / "program.json"
    path.write_text(text)
    yield from bench_of(path)


# -- wide numbers ---------------------------------------------------------------------------------------

A, B, C = field("wide", "a"), field("wide", "b"), field("wide", "c")
