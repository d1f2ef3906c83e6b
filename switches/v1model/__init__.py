"""A v1model program as frozen values (the IR that all targets share), and its reader."""
