"""Models of fabrics that are too large to run: parts, cost, failures, blast radius, shares of capacity.

If there is a formula, the models use it. Otherwise they compute with NumPy, in part with random numbers.
The generators of random numbers are arguments. No function here reads a file or a clock.
"""
