"""The definition of an experiment: scenarios read from YAML and checked, before anything is touched."""
