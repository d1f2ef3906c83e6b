"""Run scenarios in virtual time (target `sim`), with the same evidence as live runs, without root rights."""
