"""Training: what its steps were, what a watchdog would have made of them, how they are shown."""
