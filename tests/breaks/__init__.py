"""Deliberate errors in the MRC endpoint, each with the tests that have to find it.

The tables (`*.yaml`) have at least one break for each row of docs/mrc-conformance.md, and for each test that
a row names one that it finds. `python -m tests.breaks` makes every break in a copy of the sources, runs its
tests there, and prints what came of it.
"""
