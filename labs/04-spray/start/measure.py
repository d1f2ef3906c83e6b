"""Run the policies of spray.py, MRC's policy and a random policy on four fabrics. Print the results.

`python measure.py` prints a table. With a file name (`python measure.py spray.png`) it draws the table, too.
You need not change this file. The simulation that it uses is in `labs/spraying.py`.
"""

import sys

import measures
import spray

from mrclab.hosts.mrc.evs.ev import PathPolicy
from mrclab.labs.spraying import Fault, fabric
from mrclab.labs.spraying import spray as run

LINK = "p0-t0-0:p0-t1-0"
FABRICS = {
    "all links alike": {},
    "other traffic": {"cross_traffic": True},
    "one slow link": {"fault": Fault(LINK, ratio=0.1), "ev_health": False},
    "one dead link": {"fault": Fault(LINK, at_us=50), "ev_health": False},
}
POLICIES = {
    "MRC's own": None,
    "random": PathPolicy,
    "RoundRobin": spray.RoundRobin,
    "TwoChoices": spray.TwoChoices,
    "Healthy": spray.Healthy,
}


def table():
    """Return a row for each fabric and policy."""
    broken = min(path.ev for path in fabric().paths("h0", "h3") if LINK in path.links)
    rows = []
    for place, options in FABRICS.items():
        for name, policy in POLICIES.items():
            seen = run(policy, packets=6400, **options)
            even = measures.evenness(list(seen.sent.values()))
            late = measures.reordering(seen.arrived)
            rows.append((place, name, seen.took_us, even, late, seen.sent[broken], sum(seen.lost.values())))
    return rows


def main():
    """Print the table. If the command line names a file, draw the table into it."""
    rows = table()
    print(
        f"{'fabric':16} {'policy':11} {'took us':>8} {'evenness':>8} {'late':>6} {'on LINK':>7} {'lost':>5}"
    )
    for number, (place, name, took, even, late, on_link, lost) in enumerate(rows):
        shown = place if number % len(POLICIES) == 0 else ""
        print(f"{shown:16} {name:11} {took:8.0f} {even:8.2f} {late:6.1%} {on_link:7} {lost:5}")
    print(f"LINK is {LINK}; 6400 packets, 400 of them are a path's share")
    if len(sys.argv) > 1:
        draw(rows, sys.argv[1])


def draw(rows, file):
    """Draw the time of the transfer with each policy on each fabric."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(FABRICS), figsize=(12, 3), sharey=True, layout="constrained")
    for place, axis in zip(FABRICS, axes, strict=True):
        mine = [row for row in rows if row[0] == place]
        axis.bar([row[1] for row in mine], [row[2] for row in mine])
        axis.set_title(place)
        axis.tick_params(axis="x", rotation=60)
    axes[0].set_ylabel("time for 26 MB, us")
    figure.savefig(file)
    print(f"drawn: {file}")


if __name__ == "__main__":
    main()
