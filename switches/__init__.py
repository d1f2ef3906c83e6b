"""The targets that run the switch program, and their common parts."""
