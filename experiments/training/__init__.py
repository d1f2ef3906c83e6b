"""Training: its steps, their course under a watchdog, and their presentation."""
