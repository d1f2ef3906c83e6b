"""Helpers that tests and benchmarks share.

More than 16 modules: 16 is the usual limit, but each module has one idea and serves different tests.
"""
