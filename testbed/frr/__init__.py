"""The conventional fabric on this machine: the kernel forwards packets, and FRRouting runs eBGP (RFC 7938).

``plan`` assigns addresses and AS numbers, ``config`` writes the daemons' configuration, ``daemons`` starts
the daemons, ``faults`` makes faults, and ``fabric`` combines all of them.
"""
