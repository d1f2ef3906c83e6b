"""Measurements: compute times and metrics from captures and event logs. The only I/O is reading files.

There are more than 16 modules, because each measures one thing.
"""
