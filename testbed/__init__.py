"""The running emulation: a Mininet network of the fabric, link rates, processes, clean-up."""
