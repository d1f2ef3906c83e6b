"""Congestion control profiles: NSCC's parameters by the names of the API, or none at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.profiles.profile import Profile, ProfileState, invalid

NSCC = "uet-1.0-nscc"
"""The name of the algorithm [API]."""
PARAMETERS: Mapping[str, tuple[str, type[float]]] = {
    "disable_qa": ("disable_qa", bool),
    "adjust_bytes_threshold": ("adjust_bytes_threshold", int),
    "adjust_period_threshold": ("adjust_period_ns", int),
    "base_rtt": ("base_rtt_ns", int),
    "eta": ("eta", float),
    "fi": ("fi", float),
    "fi_scale": ("fi_scale", float),
    "gamma": ("gamma", float),
    "max_md_jump": ("max_md_jump", float),
    "max_cwnd": ("max_cwnd_bytes", int),
    "qa_gate": ("qa_gate", int),
    "qa_threshold": ("qa_threshold_ns", int),
    "target_delay": ("target_delay_ns", int),
}
"""The API's parameters, times in ns and sizes in bytes: our names for them, and their types."""


class CcProfile(Profile):
    """The congestion control of queue pairs."""

    kind = "CC"

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.algorithm: str | None = None
        """None: no congestion control, only the fixed window."""
        self.nscc = NsccConfig()

    def configure(
        self,
        algorithm: str | None,
        parameters: Mapping[str, float] | None = None,
        base: NsccConfig | None = None,
    ) -> None:
        """Go to OFFLINE with an algorithm; its parameters are those of `base` but for the ones given.

        Raise EINVAL on an algorithm or a parameter that does not exist, and on a wrong value.
        """
        self.require(ProfileState.INIT)
        given = dict(parameters or {})
        if algorithm not in (None, NSCC):
            raise invalid(f"no algorithm is called {algorithm!r}; there is {NSCC!r}, or none")
        if algorithm is None and given:
            raise invalid("without an algorithm there are no parameters")
        unknown = sorted(set(given) - set(PARAMETERS))
        if unknown:
            raise invalid(f"{NSCC} has no parameter {unknown[0]!r}")
        values: dict[str, Any] = {
            PARAMETERS[name][0]: PARAMETERS[name][1](value) for name, value in given.items()
        }
        try:
            self.nscc = replace(base or NsccConfig(), **values)
        except ValueError as error:
            raise invalid(str(error)) from None
        self.algorithm = algorithm
        self.state = ProfileState.OFFLINE
