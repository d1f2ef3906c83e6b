"""Fabrics too large to run: parts, cost, blast radius, failures over a job's life, shares of capacity.

A pure model: plain arithmetic where a formula is known, NumPy where one must draw or count. Nothing here
reads a file or a clock; randomness is an argument.
"""
