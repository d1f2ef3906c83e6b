"""Experiments: scenarios, the recorder, the analysis and the report.

The way through: a Scenario says what to do, the Recorder captures while it is done, `report.examine` reads
what was captured and logged into Trials, and `result`, `table` and `plots` say it to tools and to people.
"""
