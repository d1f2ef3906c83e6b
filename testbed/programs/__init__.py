"""Programs of users on the hosts of a running fabric: their management network, NIC service and view."""
