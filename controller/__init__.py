"""The P4Runtime client of the fabric, and the entries that it installs.

Static SRv6 entries are written once and then read to verify them. A fault is made by a single write. Counters
are read. The testbed has no other control protocol.
"""
