"""The live page: a browser page that shows a testbed or a simulation. Its viewers can break links."""
