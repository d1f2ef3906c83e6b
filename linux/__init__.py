"""Python functions for interfaces of the Linux kernel. They work without a fabric.

All modules except `rtnetlink`, which uses `pyroute2`, can be imported on any system.
"""
