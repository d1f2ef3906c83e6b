"""The running emulation: the fabric as a Mininet network, its link rates, processes and clean-up."""
