"""The live lab: a page on which one breaks links of a running fabric and watches the transports."""
