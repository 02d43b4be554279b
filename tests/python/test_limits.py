# SPDX-License-Identifier: BSD-3-Clause
"""Timeouts: what is accepted, what each means, for every kind of call."""

import datetime
import math
import time

import farcall
import functions
import pytest
from farcall import _farcall

SHORT = [1e-6, 1e-3, 0.05, datetime.timedelta(microseconds=1), datetime.timedelta(milliseconds=50)]
ENDLESS = [None, 0, 0.0, math.inf, 1e300, 10**400, datetime.timedelta(0), datetime.timedelta.max]
LONG = [60, 60.0, datetime.timedelta(minutes=1)]
WRONG_VALUE = [-1, -1e-9, -math.inf, math.nan, -(10**400), datetime.timedelta(seconds=-1)]
WRONG_TYPE = ["1", b"1", True, False, [1], object(), 1j]


@pytest.mark.parametrize("given, seconds", [
    (None, 0.0), (0, 0.0), (1, 1.0), (0.5, 0.5), (1e-6, 1e-6), (1e-9, 1e-9), (1e-300, 1e-9),
    (5e-324, 1e-9), (math.inf, 0.0), (1e10, 0.0), (datetime.timedelta(days=1), 86400.0),
    (datetime.timedelta(microseconds=1), 1e-6),
])  # fmt: skip
def test_units(given, seconds):
    assert _farcall._seconds(given) == seconds


@pytest.mark.parametrize("given", WRONG_VALUE, ids=str)
def test_wrong_values_are_refused_before_anything_is_sent(pair, given):
    before = farcall.metrics()["calls_started"]
    for call in (farcall.rpc_sync, farcall.rpc_async):
        for to in ("w0", "w1"):
            with pytest.raises(ValueError):
                call(to, functions.nothing, timeout=given)
    with pytest.raises(ValueError):
        farcall.set_rpc_timeout(given)
    with pytest.raises(ValueError):
        farcall.shutdown(timeout=given)
    assert farcall.metrics()["calls_started"] == before


@pytest.mark.parametrize("given", WRONG_TYPE, ids=repr)
def test_wrong_types_are_refused_before_anything_is_sent(pair, given):
    before = farcall.metrics()["calls_started"]
    for call in (farcall.rpc_sync, farcall.rpc_async):
        for to in ("w0", "w1"):
            with pytest.raises(TypeError):
                call(to, functions.nothing, timeout=given)
    with pytest.raises(TypeError):
        farcall.set_rpc_timeout(given)
    assert farcall.metrics()["calls_started"] == before


def open_gate(name):
    farcall.rpc_sync("w0", functions.open_gate, (name,))
    farcall.rpc_sync("w1", functions.open_gate, (name,))


@pytest.mark.parametrize("to", ["w0", "w1"])
@pytest.mark.parametrize("limit", [*SHORT, 1], ids=str)
def test_short_limits_run_out(pair, to, limit):
    seconds = limit.total_seconds() if isinstance(limit, datetime.timedelta) else limit
    begun = time.monotonic()
    with pytest.raises(farcall.RpcTimeoutError) as caught:
        farcall.rpc_sync(to, functions.wait_gate, ("limits",), timeout=limit)
    assert time.monotonic() - begun >= seconds  # never early
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.remote_worker is None
    future = farcall.rpc_async(to, functions.wait_gate, ("limits",), timeout=limit)
    with pytest.raises(farcall.RpcTimeoutError, match="wait_gate"):
        future.wait()
    open_gate("limits")
    functions.gates.clear()
    farcall.rpc_sync("w1", functions.forget)


@pytest.mark.parametrize("to", ["w0", "w1"])
@pytest.mark.parametrize("limit", [*ENDLESS, *LONG], ids=str)
def test_long_limits_do_not(pair, to, limit):
    assert farcall.rpc_sync(to, functions.add, (1, 2), timeout=limit) == 3
    assert farcall.rpc_async(to, functions.add, (1, 2), timeout=limit).wait() == 3


@pytest.mark.parametrize("limit", [1e-6, 1e-3, 0.05], ids=str)
def test_nested(pair, limit):
    name, worker = farcall.rpc_sync("w1", functions.forward_error, ("w0", limit))
    assert (name, worker) == ("RpcTimeoutError", None)
    with pytest.raises(farcall.RpcTimeoutError) as caught:
        farcall.rpc_sync("w1", functions.forward, ("w0", functions.wait_gate, ("n",), limit))
    # This one is not this call's own.
    assert caught.value.remote_worker == farcall.get_worker_info("w1")
    open_gate("n")
    open_gate("never")
    functions.forget()


def test_nested_deep(pair):
    assert farcall.rpc_sync("w1", functions.ping_pong, ("w1", "w0", 40)) == 40
    assert farcall.rpc_sync("w0", functions.ping_pong, ("w0", "w0", 40)) == 40


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_ten_thousand_in_flight(pair, to):
    limits = [1e-6, 1e-3, 0.05, 1.0, None, 0, math.inf, datetime.timedelta(seconds=0.2)]
    futures = [
        farcall.rpc_async(to, functions.add, (i, 1), timeout=limits[i % len(limits)])
        for i in range(10_000)
    ]
    for i, future in enumerate(futures):
        error = future.exception()
        if error is None:
            assert future.value() == i + 1
        else:
            assert isinstance(error, farcall.RpcTimeoutError)
            assert limits[i % len(limits)] not in (None, 0, math.inf)


def test_ten_thousand_run_out(pair):
    """All of them wait for two gates; those with a limit end at it, the others when it opens."""
    stuck = [farcall.rpc_async("w1", functions.wait_gate, ("big",)) for _ in range(20)]
    futures = [
        farcall.rpc_async(
            "w1", functions.wait_gate_while_wanted, ("big",), timeout=0.001 + i * 1e-5
        )
        for i in range(10_000)
    ]
    ended = [type(future.exception()) for future in futures]
    # A handler that saw its time was up may have answered at the very moment.
    assert set(ended) <= {farcall.RpcTimeoutError, type(None)}
    assert ended.count(farcall.RpcTimeoutError) > 9000
    assert not any(future.done() for future in stuck)
    open_gate("big")
    assert farcall.wait_all(stuck) == ["big"] * 20
    functions.forget()


def test_default_timeout(pair):
    assert farcall.get_rpc_timeout() == 0.0
    farcall.set_rpc_timeout(0.05)
    try:
        assert farcall.get_rpc_timeout() == 0.05
        with pytest.raises(farcall.RpcTimeoutError):
            farcall.rpc_sync("w1", functions.wait_gate, ("default",))
        open_gate_calls = farcall.rpc_async("w1", functions.open_gate, ("default",), timeout=0)
        open_gate_calls.wait()
    finally:
        farcall.set_rpc_timeout(None)
    assert farcall.get_rpc_timeout() == 0.0
    farcall.set_rpc_timeout(farcall.get_rpc_timeout())
    farcall.rpc_sync("w1", functions.forget)


def test_remaining_travels(pair):
    for to in ("w0", "w1"):
        assert farcall.rpc_sync(to, functions.remaining) is None
        assert farcall.rpc_sync(to, functions.remaining, timeout=math.inf) is None
        left = farcall.rpc_sync(to, functions.remaining, timeout=1000)
        assert 900 < left <= 1000


def test_nested_may_inherit(pair):
    left = farcall.rpc_sync("w1", functions.forward, ("w0", functions.remaining), timeout=500)
    assert left is None
    agent_options = farcall.Options(inherit_deadline=True)
    assert agent_options.inherit_deadline


def test_future_wait_has_a_limit_of_its_own(pair):
    future = farcall.rpc_async("w1", functions.wait_gate, ("own",))
    for limit in (0, 1e-6, 0.01, datetime.timedelta(milliseconds=1)):
        with pytest.raises(farcall.RpcTimeoutError):
            future.wait(limit)
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError):
            future.wait(wrong)
    with pytest.raises(TypeError):
        future.wait("1")
    assert not future.done()
    farcall.rpc_sync("w1", functions.open_gate, ("own",))
    assert future.wait() == "own" == future.wait(0) == future.wait(math.inf)


def test_a_call_whose_time_is_up_is_not_run(pair):
    """Expired before a thread got to it: the callee counts it and does not run it."""
    before = farcall.metrics()["calls_served"]
    for _ in range(50):
        with pytest.raises(farcall.RpcTimeoutError):
            farcall.rpc_sync("w0", functions.nothing, timeout=1e-9)
    counters = farcall.metrics()
    assert counters["calls_timed_out"] >= 50
    assert counters["calls_served"] - before <= 50


def test_packing_counts(pair):
    class Slow:
        def __reduce__(self):
            time.sleep(0.03)
            return int, ()

    with pytest.raises(farcall.RpcTimeoutError, match="packing"):
        farcall.rpc_sync("w1", functions.echo, (Slow(),), timeout=0.02)
