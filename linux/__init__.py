"""The kernel's interfaces, in the terms of its manual pages. Independent of fabrics.

More than 16 modules: each is about one interface of the kernel. All can be imported on any system, but for
those that use `pyroute2` (`rtnetlink`).
"""
