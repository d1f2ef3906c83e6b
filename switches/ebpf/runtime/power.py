"""The power service turns switches of the target `ebpf` off and on.

One process runs all switches of a fabric, so a single switch cannot be killed. Instead, this gRPC service
turns off one or several switches at once. Requests and answers are JSON objects::

    /mrclab.Power/Off  {"device_ids": [3, 4]}  ->  {"t_before_ns": ..., "t_after_ns": ...}
    /mrclab.Power/On   {"device_ids": [3, 4]}  ->  {"t_before_ns": ..., "t_after_ns": ...}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from mrclab.switches.spec import WAIT_KEY

SERVICE = "mrclab.Power"
TIMEOUT_S = 10.0

Stamps = tuple[int, int]
Switching = Callable[[Sequence[int], Any], Awaitable[Stamps]]


def power_handlers(off: Switching, on: Switching) -> grpc.GenericRpcHandler:
    """Return the grpc.aio service, which calls `off` or `on` with the device ids and the gRPC context."""

    def method(do: Switching) -> grpc.RpcMethodHandler[Any, Any]:
        async def answer(request: dict[str, Any], context: Any) -> dict[str, int]:
            before, after = await do([int(i) for i in request["device_ids"]], context)
            return {"t_before_ns": before, "t_after_ns": after}

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=json.loads, response_serializer=_dumps
        )

    return grpc.method_handlers_generic_handler(SERVICE, {"Off": method(off), "On": method(on)})


def switch_power(
    channel: grpc.Channel, device_ids: Sequence[int], *, on: bool, wait_ns: int | None = None
) -> Stamps:
    """Turn switches off or on. Return the times of CLOCK_MONOTONIC (ns) before and after the change.

    The server waits for `wait_ns` before it turns switches off (`linux.scheduling.at_its_moment`).
    Raise grpc.RpcError if the call fails.
    """
    call = channel.unary_unary(
        f"/{SERVICE}/{'On' if on else 'Off'}", request_serializer=_dumps, response_deserializer=json.loads
    )
    metadata = () if wait_ns is None else ((WAIT_KEY, str(wait_ns)),)
    answer = call({"device_ids": list(device_ids)}, timeout=TIMEOUT_S, metadata=metadata)
    return int(answer["t_before_ns"]), int(answer["t_after_ns"])


def _dumps(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
