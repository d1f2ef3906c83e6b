"""A fabric that runs on this machine: namespaces, links, processes, faults, and clean-up."""
