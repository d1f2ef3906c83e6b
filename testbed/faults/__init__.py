"""Faults on a live fabric: a mechanism for each kind.

The registry (`mrclab.controller.fault_registry`) checks, makes and undoes faults by mechanisms:
``link_mechanisms`` (entries of a fault table, interfaces, delay), ``switch_mechanisms`` (a switch's end) and
``repeated`` (another kind again and again). ``lab_mechanisms`` says which kind takes which on our switches;
routers have their own.
"""
