"""The options of every command, in modules that import little, so that help and mistakes appear at once."""
