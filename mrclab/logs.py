"""Messages on stderr, separate from the output."""

from __future__ import annotations

import logging


def set_up_logging(*, verbose: bool = False) -> None:
    """Warnings only, or everything."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    if not verbose:
        # finsy warns for each switch that it speaks no gNMI; neither target does.
        logging.getLogger("finsy").setLevel(logging.ERROR)
