"""Run a student's code in a process without rights, which answers calls with plain data.

The checks and their expected values stay in the calling process, where the code cannot read them.
"""
