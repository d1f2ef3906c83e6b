"""What the evidence says: captures and event logs in, times and metrics out; no I/O but reading files.

More than 16 modules: two formats of captures, endpoints' logs and the machine's load are read here as well.
"""
