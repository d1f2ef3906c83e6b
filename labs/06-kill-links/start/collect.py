"""`python collect.py run`: write the times of all trials of a run into cuts.json. Do not change this file."""

import json
import sys
from pathlib import Path

TIMES = ("first_loss_us", "detected_us", "recovered_us")


def main(directory):
    """Write cuts.json from the result in a run's directory."""
    result = json.loads((Path(directory) / "result.json").read_text())
    trials = [
        {
            "transport": trial["transport"],
            "where": trial["fault"]["where"],
            **{time: trial[time] for time in TIMES},
        }
        for trial in result["trials"]
    ]
    Path("cuts.json").write_text(json.dumps({"target": result["target"], "trials": trials}, indent=1) + "\n")
    print(f"cuts.json: {len(trials)} trials")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["run"])
