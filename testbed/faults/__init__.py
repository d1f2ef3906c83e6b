"""The mechanisms of faults on a running fabric. `mrclab.faults` has the kinds and the registry.

``link_mechanisms`` (entries of a fault table, interfaces, delay), ``switch_mechanisms`` (the end of switches)
and ``repeated`` (phases of other kinds, one after another). ``lab_mechanisms`` lists the mechanism of each
kind on our switches; routers have separate ones.
"""
