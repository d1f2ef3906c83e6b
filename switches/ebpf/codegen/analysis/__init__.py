"""What is computed about a program before any code is written."""
