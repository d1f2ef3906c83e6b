"""The analyses of a program that precede the generation of code."""
