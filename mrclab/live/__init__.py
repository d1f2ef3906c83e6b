"""The live page: a testbed or a simulation in a browser, where one breaks links and sees what happens.

More than 16 modules: sessions, their parts, and the server of a page are modules of one idea each.
"""
