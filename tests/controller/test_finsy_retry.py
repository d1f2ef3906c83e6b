"""finsy still has the private constant that ``controller.finsy_retry`` sets, and still waits by it."""

import inspect

import finsy.switch

from controller import finsy_retry


def test_finsy_waits_as_long_as_we_say() -> None:
    finsy_retry.reconnect_soon()
    assert finsy.switch._FAIL_THROTTLE_SECS == finsy_retry.RETRY_S
    source = inspect.getsource(finsy.switch)
    assert "asyncio.sleep(_FAIL_THROTTLE_SECS)" in source
    assert source.count("_FAIL_THROTTLE_SECS = ") == 1
