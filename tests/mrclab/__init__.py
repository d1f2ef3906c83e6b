"""Tests of the command line.

More than 16 modules: each command has a separate module.
"""
