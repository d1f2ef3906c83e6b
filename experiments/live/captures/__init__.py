"""Captures of packets: taps, tcpdump, and the recorder that also measures clock offsets and loads."""
