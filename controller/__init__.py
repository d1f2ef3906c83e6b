"""The P4Runtime client of the fabric and the entries that it installs.

Static SRv6 entries, written once and read back; faults as single writes; counters. No other control protocol
runs anywhere in the testbed.
"""
