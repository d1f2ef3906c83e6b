"""Helpers that tests and benchmarks share.

More than 16 modules: each module has one idea and serves different tests.
"""
