"""The reading of the evidence: captures and event logs in, times and metrics out; no I/O but reading files.

More than 16 modules: each measures one thing.
"""
