"""finsy still takes its waiting times from private constants, which mrclab.controller.fabric sets."""

import inspect

import finsy.p4client
import finsy.switch

from mrclab.controller import fabric


def test_finsy_waits_as_long_as_we_say() -> None:
    fabric.reconnect_soon()
    assert finsy.switch._FAIL_THROTTLE_SECS == fabric.RETRY_S
    source = inspect.getsource(finsy.switch)
    assert "asyncio.sleep(_FAIL_THROTTLE_SECS)" in source
    assert source.count("_FAIL_THROTTLE_SECS = ") == 1


def test_finsy_gives_answers_the_time_that_we_say() -> None:
    fabric.answer_late()
    assert finsy.p4client._DEFAULT_RPC_TIMEOUT == fabric.ANSWER_S
    source = inspect.getsource(finsy.p4client)
    assert source.count("timeout=_DEFAULT_RPC_TIMEOUT,") == 2
    assert source.count("_DEFAULT_RPC_TIMEOUT = ") == 1
