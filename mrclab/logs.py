"""Messages on stderr, separate from the output."""

from __future__ import annotations

import logging


def set_up_logging(*, verbose: bool = False) -> None:
    """Log warnings to stderr, or all messages if ``verbose``."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    if not verbose:
        # finsy warns about every switch without gNMI. No target has gNMI, so this warning has no value here.
        logging.getLogger("finsy").setLevel(logging.ERROR)
