"""Run scenarios in virtual time (target `sim`), with the same evidence as live, without root or a kernel."""
