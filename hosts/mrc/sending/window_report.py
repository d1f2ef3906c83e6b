"""Events that say how large the congestion window of a queue pair is, not more often than asked for."""

from __future__ import annotations

from mrclab.hosts.mrc.congestion.control import CongestionControl
from mrclab.hosts.mrc.events import WindowChanged
from mrclab.hosts.rdma.events import Note


class WindowReport:
    """The window as it was reported last."""

    def __init__(self, qpn: int, interval_ns: int, note: Note) -> None:
        self._qpn = qpn
        self._interval_ns = interval_ns
        self._note = note
        self._last_ns = -1 << 62
        self.cwnd_bytes = -1

    def note(self, now_ns: int, congestion: CongestionControl) -> None:
        """Emit an event for a window that changed, at most once per interval; none for the first."""
        if now_ns - self._last_ns < self._interval_ns:
            return
        if self.cwnd_bytes >= 0:
            self._note(WindowChanged, (now_ns, self._qpn, congestion.cwnd_bytes, congestion.inflight_bytes))
            self._last_ns = now_ns
        self.cwnd_bytes = congestion.cwnd_bytes
