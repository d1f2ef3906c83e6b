"""Signals that end a program, and commands that run after a program's end."""
