"""The life of programs: signals that end them, and what is done after their death."""
