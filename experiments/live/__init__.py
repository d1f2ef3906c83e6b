"""Experiments on a live fabric: bring it up, drive the workload, capture, collect."""
