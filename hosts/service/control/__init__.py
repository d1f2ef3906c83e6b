"""The service's side of OCP's control API (`mrc_ctl.h`): profiles, ports, EV events and probes of the NIC."""
