"""The P4Runtime server."""
