"""Clustermapper: it finds the bad link or switch of a fabric by probing every link out and back.

A probe's segment list leads from a NIC to its T0, on to a T1 and back to the same NIC, so every host can test
its part of the fabric by itself (arXiv:2605.04333 sections 3 and 4). ``probes`` plans them, ``prober`` sends
and receives them, ``inference`` draws conclusions from losses, ``denylist`` passes the result to hosts.
"""
