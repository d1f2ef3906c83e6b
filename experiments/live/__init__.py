"""Experiments on a live fabric: start the fabric, run the workload, capture packets, collect the results."""
