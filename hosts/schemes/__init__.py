"""Examples of path policies and congestion controls, and how schemes are found by name.

Each example is a module to copy from; docs/your-own.md leads through them.
"""
