"""How an experiment runs, live or in virtual time: its faults, the order of its steps, its evidence."""
