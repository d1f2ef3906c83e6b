"""Requests and answers: every refusal has the same form, and every line has a limited length."""

import io
import socket

import pytest

from mrclab.hosts.worker import serve
from mrclab.linux.errors import BadInputError, InputError, MachineError
from mrclab.linux.requests import TooLongError, accepted, carry_out, encode, read_line


def fails(error):
    def operation(_request):
        raise error

    return operation


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (InputError("no such place"), {"error": "no such place", "kind": "input"}),
        (BadInputError("no such file"), {"error": "no such file", "kind": "input"}),
        (MachineError("not root", "use sudo"), {"error": "not root: use sudo", "kind": "machine"}),
        (KeyError("where"), {"error": "KeyError: 'where'", "kind": "failed"}),
    ],
)
def test_an_error_is_answered_by_its_kind(error, answer):
    assert carry_out(encode({"do": "it"}), {"it": fails(error)}) == answer
    raised = RuntimeError if answer["kind"] == "failed" else type(error)
    raised = InputError if raised is BadInputError else raised
    with pytest.raises(raised, match=answer["error"]):
        accepted(answer)


@pytest.mark.parametrize("line", [b"", b"\n", b"no JSON\n", b"[]\n", b"{}\n", b'{"do": []}\n', b"[" * 60_000])
def test_what_is_no_request_is_refused(line):
    assert carry_out(line, {})["kind"] == "input"


def test_an_answer_is_passed_on():
    answer = carry_out(encode({"do": "add", "a": 1, "b": 2}), {"add": lambda r: {"sum": r["a"] + r["b"]}})
    assert accepted(answer) == {"sum": 3}


def test_a_line_beyond_the_limit_is_not_read():
    assert read_line(io.BytesIO(b"1234\n"), 5) == b"1234\n"
    with pytest.raises(TooLongError):
        read_line(io.BytesIO(b"12345\n"), 5)


class Idle:
    """A worker that has nothing to do."""

    def __init__(self):
        self.operations = {"now": lambda r: {"n": r["n"]}, "later": self._later}
        self.closed = False
        self._due = None

    def _later(self, request):
        self._due = {"n": request["n"]}

    def turn(self, _fd):
        due, self._due = self._due, None
        return due is None, due

    def close(self):
        self.closed = True


def test_a_worker_answers_in_order_and_ends_with_its_socket():
    ours, theirs = socket.socketpair()
    requests = [{"do": "later", "n": 1}, {"do": "now", "n": 2}, {"do": "neither"}]
    for request in requests:
        ours.sendall(encode(request))
    ours.shutdown(socket.SHUT_WR)
    worker = Idle()
    serve(theirs, worker)
    with ours, ours.makefile("rb") as lines:
        answers = lines.read().splitlines()
    assert answers[:2] == [b'{"n": 1}', b'{"n": 2}']
    assert b'"kind": "input"' in answers[2]
    assert worker.closed


def test_a_worker_ends_at_a_request_beyond_the_limit(monkeypatch):
    monkeypatch.setattr("mrclab.hosts.worker.REQUEST_BYTES", 20)
    ours, theirs = socket.socketpair()
    ours.sendall(b"1" * 21)
    worker = Idle()
    serve(theirs, worker)
    with ours, ours.makefile("rb") as lines:
        assert b"a line of more than 20 bytes" in lines.readline()
        assert lines.read() == b""
    assert worker.closed
