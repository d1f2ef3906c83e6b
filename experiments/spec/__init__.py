"""What an experiment does: scenarios read from YAML and checked, before anything is touched."""
