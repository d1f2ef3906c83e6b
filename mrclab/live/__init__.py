"""The live lab: a page on which one breaks links of a running fabric and sees what the transports do."""
