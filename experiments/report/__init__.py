"""What a person or a tool reads: result.json, the terminal table, plots and pages."""
