"""Delays of links without the kernel's netem."""
