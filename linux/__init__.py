"""Python functions for the kernel's interfaces, named as in its manual pages. They work without a fabric.

All modules except `rtnetlink`, which uses `pyroute2`, can be imported on any system.
"""
