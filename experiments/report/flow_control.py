"""The statistics of lossless links as a table and as sentences. Without lossless links, both are empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrclab.experiments.result.numbers import amount, figure

MOST_LINKS = 5
"""The table has at most this number of links for each transport."""
_STOPPED = {"pfc": "were paused", "credit": "were out of credits"}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Return a short text for each transport that ran over lossless links."""
    return [
        f"{name}: {_sentence(found['flow_control'])}"
        for name, found in result["transports"].items()
        if found.get("flow_control")
    ]


def _sentence(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a text about the stopped links in all repetitions of a transport."""
    mode = parts[0]["mode"]
    ports = [port for part in parts for port in part["ports"] if port["stopped_us"]]
    if not ports:
        return f"no link {_STOPPED[mode].replace('were', 'was')}."
    share = max(
        port["stopped_us"] / part["length_us"]
        for part in parts
        for port in part["ports"]
        if part["length_us"]
    )
    each = len(ports) / len(parts)
    depth = max(port["depth"] for port in ports)
    blocked = sum(port["blocked_packets"] for port in ports)
    row = "no further than one link" if depth == 1 else f"over up to {depth} links in a row"
    text = (
        f"{figure(each)} of {parts[0]['links']} links {_STOPPED[mode]}, one for {figure(100 * share)} % of "
        f"the time; this spread {row}."
    )
    if blocked:
        text += (
            f" {figure(blocked)} packets waited there though the port that they were bound for was free "
            "(head-of-line blocking)."
        )
    return text


def rows_of(result: Mapping[str, Any]) -> list[list[str]]:
    """Return, for each transport, table rows for the links that pauses or missing credits stopped longest."""
    rows = []
    for name, found in result["transports"].items():
        parts = found.get("flow_control") or ()
        by_port: dict[str, list[Mapping[str, Any]]] = {}
        for part in parts:
            for port in part["ports"]:
                if port["stopped_us"]:
                    by_port.setdefault(port["port"], []).append(port)
        total = sum(part["length_us"] for part in parts) or 1.0
        longest = sorted(by_port.items(), key=lambda item: -sum(p["stopped_us"] for p in item[1]))
        for port_name, ports in longest[:MOST_LINKS]:
            stopped = sum(port["stopped_us"] for port in ports)
            rows.append(
                [
                    name,
                    port_name.replace(">", " to "),
                    f"{figure(100 * stopped / total)} %",
                    figure(sum(port["stops"] for port in ports) / len(parts)),
                    amount(stopped / max(sum(port["stops"] for port in ports), 1), "_us"),
                    str(max(port["depth"] for port in ports)),
                    figure(sum(port["blocked_packets"] for port in ports) / len(parts)),
                    f"{figure(max(port['queue_bytes'] for port in ports) / 1e3)} kB",
                ]
            )
    return rows
