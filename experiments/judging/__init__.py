"""The common parts of judges: verdicts, criteria with their intervals, readings of a result, and theory at
its scale.

Pure: a result's contents in, a verdict out. All scale (rates, paths, round trips) comes from the result and
its topology, so that results of any speed can be judged.
"""
