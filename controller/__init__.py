"""The P4Runtime client of the fabric, and the entries that it installs.

The client writes the static SRv6 entries of each switch once, and then reads the entries to verify them. The
client also makes faults, each with a single write, and reads counters.
"""
