"""The live page: a browser page that shows a testbed or a simulation, on which users break links."""
