"""The definition of an experiment: scenarios read from YAML and checked, before anything is touched.

More than 16 modules: each reads one part of a scenario.
"""
