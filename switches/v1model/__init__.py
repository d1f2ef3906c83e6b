"""The intermediate representation of a v1model program (frozen values), and the reader that builds it."""
