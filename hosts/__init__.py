"""The hosts: the NIC and its transports, the agent that runs on a host, and the API for applications."""
