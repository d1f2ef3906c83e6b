"""The course of an experiment, live and in virtual time: its faults, what is due when, its evidence."""
