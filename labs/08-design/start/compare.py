"""Print designs side by side, computed by your formulas of fabric.py. You need not change this file."""

import fabric

CHIP_GBPS, NIC_GBPS = 51_200, 800
DESIGNS = [(3, 1), (2, 4), (2, 8), (2, 16), (3, 4)]


def main():
    """Print a column for each design, with the values of the largest possible fabric."""
    print(f"{'tiers, planes':24}" + "".join(f"{f'{t}, {p}':>12}" for t, p in DESIGNS))
    rows = {}
    for tiers, planes in DESIGNS:
        k = fabric.radix(CHIP_GBPS, NIC_GBPS, planes)
        nics = fabric.most_nics(k, tiers)
        count = fabric.switches(nics, k, tiers, planes)
        for name, value in {
            "ports of a switch": f"{k}",
            "room for NICs": f"{nics:,}",
            "switches": f"{count:,}",
            "switches per 1,000 NICs": f"{1000 * count / nics:.1f}" if nics else "-",
            "paths": f"{fabric.paths(k, tiers, planes):,}",
            "lost with a port": f"{fabric.lost_with_port(planes):.1%}",
            "lost with an uplink": f"{fabric.lost_with_uplink(k):.2%}",
        }.items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        print(f"{name:24}" + "".join(f"{value:>12}" for value in values))


if __name__ == "__main__":
    main()
