"""Models of fabrics that are too large to run: parts, cost, failures, blast radius, shares of capacity.

If there is a formula, the models use it; random draws and counts use NumPy. No function here reads a file or
a clock, and random generators are arguments.
"""
