"""Clustermapper: finds the bad link or switch of a fabric by probing every link out and back.

Probes go from a NIC up to its T0, on to a T1 and back to the same NIC by their segment list, so every host
can test its part of the fabric by itself (arXiv:2605.04333 sections 3 and 4). ``probes`` says which there
are, ``inference`` what their loss means, ``prober`` sends and receives them, ``denylist`` is for hosts.
"""
