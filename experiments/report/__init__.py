"""The output of a run for people and tools: result.json, the terminal table, plots and pages."""
