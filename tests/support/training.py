"""What tests of training share: a model that compiles in a moment, and what to do where JAX is missing."""

import os
from importlib.util import find_spec
from typing import Any

import pytest

from hosts.training.xla import NEEDED

SMALL: dict[str, Any] = {"layers": 1, "width": 8, "heads": 2, "context": 8, "batch": 2}
needs_jax = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED) and not os.environ.get("CI"),
    reason="JAX is not installed (pip install 'mrclab[training]')",
)
