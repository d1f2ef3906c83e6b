"""Scenarios in virtual time (target `sim`): the same evidence as a live run leaves, without root or kernel."""
