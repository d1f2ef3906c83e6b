"""Writing and reading P4Runtime entities, one module for each kind."""
