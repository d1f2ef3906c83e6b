"""`python collect.py plane`: write the times of each rank's steps into plane.npz.

You need not change this file. The arrays have a row for each rank and a column for each step, in ns of one
clock: `start` (the rank begins to compute), `computed` (its all-reduce begins), `reduced` (its all-reduce
ends), `end` (the all-reduces of all ranks have ended).
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(directory):
    """Write the .npz file of a run from the data in the run's directory."""
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
