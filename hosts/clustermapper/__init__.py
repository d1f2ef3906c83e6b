"""Find the bad link or switch of a fabric with probes over every link, in both directions (Clustermapper).

The segment list of a probe leads from a NIC to its T0, to a T1, and back to the same NIC. So every host can
test its part of the fabric without other hosts (arXiv:2605.04333 sections 3 and 4). ``probes`` plans the
probes, ``prober`` sends and receives them, ``inference`` finds the bad places, ``denylist`` passes
their names to the hosts.
"""
