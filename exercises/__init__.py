"""Exercises of P4 courses: a directory with a topology and each switch's program and entries."""
