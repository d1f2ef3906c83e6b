"""Profiles of the control API: EV formats, EVs and congestion control, by which queue pairs are set up."""
