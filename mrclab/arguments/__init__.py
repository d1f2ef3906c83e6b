"""The options of every command. The modules here import few other modules, so help appears quickly."""
