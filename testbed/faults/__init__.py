"""Faults on a running fabric: one registry of active ones, and a mechanism for each kind.

``registry`` checks, makes and undoes faults and knows the active ones. A mechanism makes them:
``link_mechanisms`` (entries of a fault table, interfaces, delay), ``switch_mechanisms`` (a switch's end) and
``repeated`` (another kind again and again). ``lab_mechanisms`` says which kind takes which on our switches;
routers have their own.
"""
