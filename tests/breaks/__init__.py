"""Deliberate errors in the MRC endpoint, each with the tests that have to find it.

Such an error is called a break. The tables (`*.yaml`) have at least one break for each row of
docs/mrc-conformance.md. Each test that a row names finds at least one break. `python -m tests.breaks` makes
each break in a copy of the sources, runs the break's tests there, and prints the results.
"""
