"""Packets and queues of students' switch programs, for the checks of labs 2 and 3."""
