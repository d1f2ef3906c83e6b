"""The conventional fabric for real: the kernel's routers with FRRouting, eBGP between them (RFC 7938).

``plan`` assigns addresses and AS numbers, ``config`` writes the daemons' configuration, ``daemons``
runs them, ``faults`` breaks links, ``fabric`` ties them together.
"""
