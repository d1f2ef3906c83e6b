"""Tests of the MRC core.

More than 16 modules: one for each part of the protocol.
"""
