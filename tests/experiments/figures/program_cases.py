"""Made-up results of a program for its judge. A link is cut while the program sends over 16 paths."""

from __future__ import annotations

from typing import Any

from tests.support.made_results import Cases, Result, result, trial

RUN = ["ib_write_bw", "-s", "65536", "-n", "100", "h6"]
WORKLOAD = {
    "kind": "program",
    "senders": ["h0"],
    "programs": [
        {"host": "h6", "run": RUN[:-1], "exit_code": 0, "listens": 18515, "user": "", "metrics": {}},
        {"host": "h0", "run": RUN, "exit_code": 0, "listens": 0, "user": "", "metrics": {}},
    ],
}
WHOLE = 65536 * 100
LIMIT_US = 16 * 4096 * 8 / 1000 + 4 * 2000


def _run(recovered_us: float | None, completed: int = WHOLE, failed: int = 0, **more: Any) -> Result:
    samples = [
        {
            "repetition": number,
            "failure": "h0 ib_write_bw exit code 1" if number < failed else None,
            "integrity": "ok",
            "metrics": {"completed_bytes": [completed], "goodput_mbps": [1000.0 - number]},
        }
        for number in range(8)
    ]
    values = {"recovered_us": recovered_us, "rtt_p99_us": 2000.0, "paths_used": 16, **more}
    trials = [
        trial("mrc", number, **values, first_loss_us=float(number), rtt_us=1900.0 + number)
        for number in range(8)
    ]
    return result(WORKLOAD, {"mrc": {"samples": samples}}, topology="lab", trials=trials)


def program_kill() -> Cases:
    """Return a result that must pass, and results that must not."""
    return Cases(
        _run(0.9 * LIMIT_US),
        {
            "recovered after the bound": _run(1.1 * LIMIT_US),
            "bytes are missing": _run(0.9 * LIMIT_US, WHOLE - 65536),
            "bytes too many": _run(0.9 * LIMIT_US, WHOLE + 65536),
            "a program failed": _run(0.9 * LIMIT_US, failed=1),
            "never recovered": _run(None),
        },
        {"none was felt": _run(None, felt=False), "no round trip": _run(0.9 * LIMIT_US, rtt_p99_us=None)},
    )
