"""Meter configurations as messages (specification, section 9.4)."""

from __future__ import annotations

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.runtime.meters import Rates


def read_rates(config: p4r.MeterConfig) -> Rates:
    """Read a configuration from a message. Raise P4RuntimeError INVALID_ARGUMENT."""
    numbers = (config.cir, config.cburst, config.pir, config.pburst)
    if any(n < 0 for n in numbers) or config.eburst:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, "a meter takes no negative numbers and no eburst")
    if config.pir < config.cir:
        raise P4RuntimeError(Code.INVALID_ARGUMENT, "a meter's peak rate is below its committed rate")
    return Rates(*numbers)


def write_rates(rates: Rates, to: p4r.MeterConfig) -> None:
    """Write a configuration into a message."""
    to.cir, to.cburst, to.pir, to.pburst = (
        rates.committed,
        rates.committed_burst,
        rates.peak,
        rates.peak_burst,
    )
