"""A student's code, in a process without rights that answers calls with plain data.

The checks and everything that they know stay outside, in the process that calls.
"""
