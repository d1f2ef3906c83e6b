"""Run an experiment: bring up its fabric, drive the workload, make the faults, capture, collect."""
