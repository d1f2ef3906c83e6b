"""The options of every command. These modules import little, so help and error messages appear quickly."""
