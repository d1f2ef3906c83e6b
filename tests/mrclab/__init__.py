"""Tests of the command line.

More than 16 modules: 16 is the usual limit, but each command has a separate module.
"""
