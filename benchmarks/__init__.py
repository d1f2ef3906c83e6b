"""Measurements of the parts; `python -m benchmarks` runs them.

More than 16 modules: each is a program of its own, with no other reader than whoever runs it.
"""
