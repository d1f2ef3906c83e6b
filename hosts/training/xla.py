"""JAX, set up so that the same input gives the same bits in every process of a machine.

XLA splits work over the threads that it has, and a sum that is split differently is rounded differently. So
all computing here is by one thread. The compiled code still depends on the CPU's instructions: bits can be
compared between processes of one machine, and not between machines.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from mrclab.linux.errors import MachineError
from mrclab.linux.life.environment import environment

NEEDED = ("jax", "jaxlib")
THREADS = "NPROC"
"""The variable from which XLA's client reads its number of threads; without it, one for each CPU."""


def require_jax() -> None:
    """Raise MachineError, which names the mend, where JAX is not installed."""
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise MachineError(f"training needs Python's '{missing}'", "pip install 'mrclab[training]'")


def load_jax() -> Any:
    """Import JAX and start its client, for the CPU and with one thread.

    Raise MachineError if it is not installed.
    """
    require_jax()
    with environment({THREADS: "1", "JAX_PLATFORMS": "cpu"}):
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.devices()  # starts the client, which reads the variables only once
    return jax
