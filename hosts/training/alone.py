"""The training of all ranks in one process, without a network.

The ranks of a distributed run must compute exactly the same parameters as this process.

``python -m mrclab.hosts.training.alone SETTINGS STEPS`` (JSON, and a number) prints the digests as JSON. A
digest is a hash of all parameters.
"""

from __future__ import annotations

import json
import sys

from mrclab.hosts.collectives.collective_operations import ring_sum
from mrclab.hosts.training.model import Model, Settings, Text


def digests_alone(settings: Settings, steps: int) -> list[str]:
    """Return the digests (hexadecimal) of the parameters before the first step and after each step.

    One process computes every rank's gradient, and adds them in the order of the ring. Raise MachineError if
    JAX is not installed.
    """
    model = Model(settings, Text.shipped())
    found = [model.digest().tobytes().hex()]
    for step in range(steps):
        model.update(step, ring_sum([model.gradient(step, rank)[1] for rank in range(settings.ranks)]))
        found.append(model.digest().tobytes().hex())
    return found


def main() -> None:
    """Train the model, and print the digests of its parameters."""
    print(json.dumps(digests_alone(Settings(**json.loads(sys.argv[1])), int(sys.argv[2]))))


if __name__ == "__main__":
    main()
