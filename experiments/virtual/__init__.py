"""Scenarios in virtual time (target `sim`): a live run's evidence without root or kernel."""
