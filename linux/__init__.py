"""The kernel's interfaces, in the terms of its manual pages. They do not depend on fabrics.

All modules except `rtnetlink`, which uses `pyroute2`, can be imported on any system.
"""
