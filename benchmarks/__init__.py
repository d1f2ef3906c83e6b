"""Measurements of the parts; `python -m benchmarks` runs them.

More than 16 modules: each is a separate program, read only by the people who run it.
"""
