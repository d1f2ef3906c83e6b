"""Programs of users on hosts of a running fabric: NIC service, management network, view of the system."""
