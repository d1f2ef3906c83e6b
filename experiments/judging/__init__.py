"""The common parts of judges: verdicts, criteria, values read from a result, and expected values.

A judge computes a verdict from the contents of a result.json. Rates, paths and round trips come from the
result and its topology, so that results of fabrics of any speed can be judged.
"""
