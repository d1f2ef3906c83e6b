"""A class's hand-ins: find, unpack and check them again, compare them, and write tables."""
