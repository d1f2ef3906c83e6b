"""Faults: the kinds that exist, a fault as a value, and the registry of active faults. Pure.

``kinds`` is the table: a row has a kind's parameters, words, buttons and everything else that differs between
kinds. ``model`` has the types and checks a fault. ``mechanism`` is the protocol of an implementation,
``registry`` keeps the active faults of a fabric. Implementations register themselves by kind:
`mrclab.testbed.faults` (switches and interfaces), `mrclab.testbed.frr.faults` (routers),
`mrclab.simulator.faults` (virtual time).
"""
