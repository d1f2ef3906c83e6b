"""Profiles of the control API: EV formats, EVs and congestion control for new queue pairs."""
