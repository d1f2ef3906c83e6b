"""`python collect.py plane`: write when each rank began and ended each step into plane.npz.

Nothing is to be written here. The arrays have a row for each rank and a column for each step, in ns of one
clock: `start` (computing begins), `computed` (the all-reduce begins), `reduced` (its all-reduce is done),
`end` (all are).
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(directory):
    """Collect."""
    data = np.load(Path(directory) / "mrc-0" / "data.npz")
    ranks = sorted({name.split("_")[0] for name in data if name.startswith("rank")})
    arrays = {
        what: np.stack([data[f"{rank}_{what}_ns"] for rank in ranks])
        for what in ("start", "computed", "reduced", "end")
    }
    result = json.loads((Path(directory) / "result.json").read_text())
    (fault,) = result["transports"]["mrc"]["faults"]
    file = Path(directory).with_suffix(".npz").name
    np.savez(file, fault_ns=fault["t_before_ns"], **arrays)
    print(f"{file}: {len(ranks)} ranks, {arrays['start'].shape[1]} steps")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["plane"])
