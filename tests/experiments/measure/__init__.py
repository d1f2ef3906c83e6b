"""Tests of the measurements.

More than 16 modules: one for each thing that is measured.
"""
