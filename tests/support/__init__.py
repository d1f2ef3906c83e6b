"""Helpers that tests and benchmarks share.

More than 16 modules: each serves other tests, and has one idea.
"""
