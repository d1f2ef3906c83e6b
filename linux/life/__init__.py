"""The life of programs: signals that end them, and commands that run after their end."""
