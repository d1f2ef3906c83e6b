"""A result: its form, its file, its statistics, and how its numbers and pictures look."""
