"""The output of a run: result.json, the table in the terminal, pictures and HTML pages."""
