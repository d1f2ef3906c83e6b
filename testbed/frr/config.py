"""The configuration files of a router's FRRouting daemons."""

from __future__ import annotations

from mrclab.topologies.routed import Router, Timers

BFD_PROFILE = "fabric"


def zebra_conf(router: Router) -> str:
    """Return zebra's configuration: the links' addresses. BGP gets the hosts' routes from the kernel."""
    lines = [f"hostname {router.name}"]
    for neighbour in router.neighbours:
        lines += [f"interface {neighbour.ifname}", f" ipv6 address {neighbour.own}/127", "exit"]
    return "\n".join(lines) + "\n"


def bgpd_conf(router: Router, timers: Timers) -> str:
    """Return bgpd's configuration: eBGP to every neighbour, ECMP over equal paths (RFC 7938 section 6.1).

    Updates are sent immediately, as in data centres. The advertisement interval of 30 s that RFC 4271
    suggests is for the Internet.
    """
    lines = [
        f"hostname {router.name}",
        f"router bgp {router.asn}",
        f" bgp router-id {router.router_id}",
        " no bgp default ipv4-unicast",
        " no bgp ebgp-requires-policy",
        " no bgp network import-check",
        " bgp bestpath as-path multipath-relax",
        f" timers bgp {timers.keepalive_s} {timers.hold_s}",
    ]
    for neighbour in router.neighbours:
        lines += [
            f" neighbor {neighbour.address} remote-as {neighbour.remote_as}",
            f" neighbor {neighbour.address} advertisement-interval 0",
            f" neighbor {neighbour.address} timers connect 1",
        ]
        if timers.bfd_interval_ms:
            lines.append(f" neighbor {neighbour.address} bfd profile {BFD_PROFILE}")
    lines += [" address-family ipv6 unicast", "  redistribute kernel", "  maximum-paths 64"]
    lines += [f"  neighbor {neighbour.address} activate" for neighbour in router.neighbours]
    return "\n".join([*lines, " exit-address-family", "exit"]) + "\n"


def bfdd_conf(router: Router, timers: Timers) -> str:
    """Return bfdd's configuration: the timers of BFD. bgpd decides which sessions BFD watches."""
    lines = [
        f"hostname {router.name}",
        "bfd",
        f" profile {BFD_PROFILE}",
        f"  detect-multiplier {timers.bfd_multiplier}",
        f"  receive-interval {timers.bfd_interval_ms}",
        f"  transmit-interval {timers.bfd_interval_ms}",
        " exit",
        "exit",
    ]
    return "\n".join(lines) + "\n"
