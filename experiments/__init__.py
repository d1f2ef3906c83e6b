"""Experiments: scenarios, the recorder, the analysis and the report.

`spec` has the description of a run, and `live` and `virtual` perform the run. `measure` computes times and
metrics from captures and logs. `judging` and `figures` compare these values with claims, and `report` writes
result files and pages.
"""
