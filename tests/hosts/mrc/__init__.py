"""Tests of the MRC core.

More than 16 modules: each part of the protocol has a separate module.
"""
