"""The P4Runtime server of the software target (P4Runtime specification 1.4)."""
