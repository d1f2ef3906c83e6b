"""What the evidence says: captures and event logs in, times and metrics out; no I/O but reading files."""
