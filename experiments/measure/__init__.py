"""Measurements: compute times and metrics from captures and event logs. The only I/O is reading files."""
