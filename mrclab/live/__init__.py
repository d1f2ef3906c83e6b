"""The live page: a browser page that shows a testbed or a simulation, on which users break links.

More than 16 modules: each part of a session and of the server is a separate module.
"""
