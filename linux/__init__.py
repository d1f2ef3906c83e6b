"""The kernel's interfaces, in the terms of its manual pages. Independent of fabrics.

All modules can be imported on any system, except `rtnetlink`, which uses `pyroute2`.
"""
