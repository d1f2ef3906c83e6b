"""The steps of a training job. Times are numpy arrays with a row for each rank and a column for each step."""

import sys

import numpy as np


def step_times(start, end):
    """Return how long each step took: from the first rank's start to the last rank's end."""
    return end.max(axis=0) - start.min(axis=0)


def slowest(computed, reduced):
    """Return, for each step, the row of the rank whose all-reduce took longest."""
    return (reduced - computed).argmax(axis=0)


def cost(times, start, fault_ns):
    """Return the median time of steps after a fault, divided by the median time of steps before the fault.

    A step counts as before the fault if it ended before `fault_ns`, and as after the fault if it began after
    `fault_ns`. `start` has the time at which each step began.
    """
    before = times[start + times < fault_ns]
    after = times[start > fault_ns]
    return float(np.median(after) / np.median(before))


def predicted(planes, compute, communicate):
    """Return the expected slowdown factor of a step if a plane fails. A step computes, then communicates."""
    return (compute + communicate * planes / (planes - 1)) / (compute + communicate)


def main(file):
    """Print the steps that a file contains."""
    data = np.load(file)
    times = step_times(data["start"], data["end"])
    comm = (data["reduced"] - data["computed"]).max(axis=0)
    begin = data["start"].min(axis=0)
    fault_ns = int(data["fault_ns"])
    ranks = slowest(data["computed"], data["reduced"])
    print("step  began ms  took ms  all-reduce ms  slowest rank")
    for number, (t, took, talk, rank) in enumerate(zip(begin, times, comm, ranks, strict=True)):
        note = "  <- the fault is in it" if t <= fault_ns < t + took else ""
        print(
            f"{number:4}  {(t - begin[0]) / 1e6:8.1f}  {took / 1e6:7.2f}  {talk / 1e6:13.2f}  {rank:12}{note}"
        )
    early = begin + times < fault_ns
    late = begin > fault_ns
    print(
        f"medians: all-reduce before {np.median(comm[early]) / 1e6:.2f} ms, after {np.median(comm[late]) / 1e6:.2f} ms"
    )
    print(f"a step takes {cost(times, begin, fault_ns):.3f} times as long; ", end="")
    print(f"predicted {predicted(4, 10.0, float(np.median(comm[early])) / 1e6):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["plane.npz"])
