"""The hosts: the NIC and its transports, the agent that runs on a host, and the API its applications use."""

from hosts.compiled import HOSTS, prefer

prefer(__path__, HOSTS)  # Before any module of this package is imported, but that one.
