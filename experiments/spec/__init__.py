"""Scenarios: YAML files that define experiments. They are read and checked before an experiment starts."""
