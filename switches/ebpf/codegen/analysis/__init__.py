"""Analyses of a P4 program that the compiler makes before it writes code."""
