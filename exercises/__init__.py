"""Exercises of P4 courses: a directory with a topology and what goes into each switch's tables."""
