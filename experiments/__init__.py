"""Experiments: scenarios, the recorder, the analysis and the report.

In order: a Scenario describes the run, the Recorder captures during it, `report.examine` reads captures and
logs into Trials, and `result`, `table` and `plots` present them to tools and to people.
"""
