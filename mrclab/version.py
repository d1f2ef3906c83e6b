"""The version of the installed package."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return the version, or "(not installed)"."""
    try:
        return importlib.metadata.version("mrclab")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
