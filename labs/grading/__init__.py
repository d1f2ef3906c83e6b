"""A class's hand-ins: found, unpacked, checked again, compared with each other, and written as tables."""
