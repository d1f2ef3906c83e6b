"""The output of a run for people and tools: result.json, the terminal table, plots and pages.

More than 16 modules: each has one part of the result or of its page.
"""
