"""What users' programs on hosts need: the NIC service, a management network, files such as /etc/hosts."""
