"""The ground floor: what the kernel offers, in the words of its manual pages; knows nothing of fabrics.

More than 16 modules: each is about one interface of the kernel. All can be imported on any system, but for
those that use `pyroute2` (`offloads`, `rtnetlink`).
"""
