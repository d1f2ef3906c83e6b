"""Ranks of a parallel job on the fabric's hosts: channels between ranks, collectives, and jobs."""
