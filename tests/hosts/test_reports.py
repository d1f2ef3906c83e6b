"""Events are created only when the application reads them."""

from mrclab.hosts.rdma.endpoint import Reports
from mrclab.hosts.rdma.events import QpError, Retransmitted, SendCompleted, Status, made_by


def test_an_event_noted_for_later_comes_in_its_turn() -> None:
    reports = Reports()
    made: list[int] = []

    def kind(t_ns: int, qpn: int) -> QpError:
        made.append(t_ns)
        return QpError(t_ns, qpn, Status.FLUSHED, "")

    completed = SendCompleted(20, 1, 5, Status.SUCCESS, 8)
    early = Retransmitted(10, 1, 2, 3, 4)
    reports.add(completed)
    reports.add_later(Retransmitted, (10, 1, 2, 3, 4))
    reports.add_later(kind, (30, 1))
    assert not made
    assert list(reports.drain()) == [early, completed, QpError(30, 1, Status.FLUSHED, "")]
    assert made == [30], "each event is made once"
    assert reports.next_event() is None


def test_without_a_later_each_event_is_made_at_once() -> None:
    taken: list[object] = []
    made_by(taken.append)(Retransmitted, (10, 1, 2, 3, 4))
    assert taken == [Retransmitted(10, 1, 2, 3, 4)]
