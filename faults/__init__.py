"""Faults: the kinds that exist, a fault as a value, and the registry of active faults. No input or output.

`kinds` has the types, the check of a fault, and a table with a row for each kind: its parameters, texts,
buttons and all other differences between kinds. `registry` keeps the active faults of a fabric, and has the
protocol of the mechanisms that make faults. A mechanism is an implementation of one kind:
`mrclab.testbed.faults` (switches and interfaces), `mrclab.testbed.frr.faults` (routers),
`mrclab.simulator.faults` (virtual time).
"""
