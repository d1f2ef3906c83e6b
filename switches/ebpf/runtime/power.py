"""The power service: switches switches of the software target off and on.

All switches of a fabric are in one process, so a single one cannot be killed. This small gRPC service
beside P4Runtime switches off one or several at once instead. Requests and answers are JSON objects::

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
    """Return the service for grpc.aio. Both functions get the device ids and the call's context."""

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
    """Switch devices off or on; return CLOCK_MONOTONIC (ns) before the first and after the last.

    `wait_ns` is a wait before the first, for `Off` (`linux.scheduling.at_its_moment`).
    Raises grpc.RpcError.
    """
    call = channel.unary_unary(
        f"/{SERVICE}/{'On' if on else 'Off'}", request_serializer=_dumps, response_deserializer=json.loads
    )
    metadata = () if wait_ns is None else ((WAIT_KEY, str(wait_ns)),)
    answer = call({"device_ids": list(device_ids)}, timeout=TIMEOUT_S, metadata=metadata)
    return int(answer["t_before_ns"]), int(answer["t_after_ns"])


def _dumps(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
