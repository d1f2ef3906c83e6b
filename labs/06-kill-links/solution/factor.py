"""Compare the times that two transports need to recover. Each time has three parts (see `parts`)."""

import json
from pathlib import Path


def median(values):
    """Return the median of a non-empty list: for an even length, the mean of the middle two values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def factor(trials, slow, fast):
    """Return the median `recovered_us` of transport `slow`, divided by the median of transport `fast`.

    `trials` is a list as in cuts.json. Trials without a recovery (None) are left out.
    """
    slow_us, fast_us = (
        median(
            [t["recovered_us"] for t in trials if t["transport"] == name and t["recovered_us"] is not None]
        )
        for name in (slow, fast)
    )
    return slow_us / fast_us


def parts(trial):
    """Return the three parts of a trial's time to recover, in us. Their sum is `recovered_us`.

    The parts are the times from the fault until the first packet is lost, from this loss until the sender
    notices it, and from then until all data is repaired.
    """
    lost, noticed, recovered = trial["first_loss_us"], trial["detected_us"], trial["recovered_us"]
    return lost, noticed - lost, recovered - noticed


def main():
    """Read cuts.json and print a table with a row for each transport."""
    trials = json.loads(Path("cuts.json").read_text()).get("trials", [])
    print(
        f"{'us, medians':12} {'recovered':>10} {'x MRC':>8}   {'to loss':>10} {'noticing':>10} {'repairing':>10}"
    )
    for name in dict.fromkeys(trial["transport"] for trial in trials):
        mine = [t for t in trials if t["transport"] == name and t["recovered_us"] is not None]
        if not mine:
            print(f"{name:12} no recovery")
            continue
        shares = [median(part) for part in zip(*map(parts, mine), strict=True)]
        print(
            f"{name:12} {median([t['recovered_us'] for t in mine]):10.0f} {factor(trials, name, 'mrc'):8.1f}   "
            + " ".join(f"{share:10.0f}" for share in shares)
        )


if __name__ == "__main__":
    main()
