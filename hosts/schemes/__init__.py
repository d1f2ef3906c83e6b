"""Examples of path policies and congestion controls, and the registry that finds schemes by name.

Each example is a module to copy from; docs/your-own.md explains them.
"""
