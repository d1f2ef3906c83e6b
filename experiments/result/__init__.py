"""A run's result: the form of result.json, its file, statistics, and the look of numbers and pictures."""
