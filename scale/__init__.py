"""Fabrics too large to run: parts, cost, blast radius, failures over a job's life, shares of capacity.

A pure model: plain arithmetic if a formula is known, NumPy if one must draw or count. Nothing here
reads a file or a clock; randomness is an argument.
"""
