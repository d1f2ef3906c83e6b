"""Tests of the measurements.

More than 16 modules: 16 is the usual limit, but each measured quantity has a separate module.
"""
