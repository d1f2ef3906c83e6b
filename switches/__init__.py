"""The targets that run the switch program, and what they share."""
