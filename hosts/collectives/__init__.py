"""Ranks of a parallel job on the fabric's hosts: channels between them, collectives over those, workloads."""
