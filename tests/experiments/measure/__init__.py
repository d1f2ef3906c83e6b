"""Tests of the measurements.

More than 16 modules: each measured quantity has a separate module.
"""
