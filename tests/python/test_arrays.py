# SPDX-License-Identifier: BSD-3-Clause
"""numpy arrays: what arrives, where it lies, and whose it is."""

import gc
import pickle

import farcall
import functions
import numpy as np
import pytest
from farcall import _farcall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

BOTH = pytest.mark.parametrize("to", ["w0", "w1"])
RELAXED = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def same(a, b):
    b = pickle.loads(pickle.dumps(b, 5))  # numpy itself changes some, such as big-endian dates
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


@pytest.mark.parametrize("to", ["w0", "w1"])
@RELAXED
@given(data=st.data())
def test_round_trip(pair, to, data):
    array = data.draw(
        npst.arrays(
            dtype=st.one_of(npst.scalar_dtypes(), npst.datetime64_dtypes(), npst.unicode_string_dtypes()),
            shape=npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
        )
    )
    how = data.draw(st.sampled_from(["as it is", "transposed", "every second", "read-only", "nested"]))
    if how == "transposed":
        array = array.T
    elif how == "every second" and array.ndim:
        array = array[::2]
    elif how == "read-only":
        array.flags.writeable = False
    sent = {"deep": [array, array]} if how == "nested" else array
    back = farcall.rpc_sync(to, functions.echo, (sent,))
    if how == "nested":
        assert back["deep"][0] is back["deep"][1]
        back = back["deep"][0]
    same(back, array)


@pytest.mark.parametrize("to", ["w0", "w1"])
@RELAXED
@given(
    array=npst.arrays(
        dtype=st.one_of(
            npst.boolean_dtypes(),
            npst.integer_dtypes(endianness="="),
            npst.unsigned_integer_dtypes(endianness="="),
            npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
            npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
        ),
        shape=npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    ),
    flip=st.booleans(),
)
def test_round_trip_by_exported_name(pair, to, array, flip):
    array = array.T if flip else array
    back = farcall.rpc_sync(to, "test.echo", (array,))
    same(back, array)
    assert back.flags.writeable


@BOTH
@pytest.mark.parametrize("count", [1, 100, 1000, 1_000_000])
def test_what_arrives_is_the_receivers_own(pair, to, count):
    sent = np.arange(count, dtype=np.float64)
    back = farcall.rpc_sync(to, functions.fill, (sent, 7))
    assert (back == 7).all() and back.flags.writeable
    same(sent, np.arange(count, dtype=np.float64))
    back[:] = 8
    assert (farcall.rpc_sync(to, functions.ones, (count,)) == 1).all()


@BOTH
def test_read_only_arrays_arrive_writable(pair, to):
    sent = np.arange(1000.0)
    sent.flags.writeable = False
    assert farcall.rpc_sync(to, functions.describe, (sent,))["writeable"]
    assert farcall.rpc_sync(to, functions.echo, (sent,)).flags.writeable
    assert farcall.rpc_sync(to, functions.echo, ([sent, np.zeros(1000)],))[0].flags.writeable


@BOTH
def test_received_without_a_copy(pair, to):
    """The array lies in the memory that the library received it into."""
    names = farcall.rpc_sync(to, functions.buffer_types, (np.zeros(10_000),))
    assert names[-1] == "Buffer"
    assert functions.buffer_types(farcall.rpc_sync(to, functions.ones, (10_000,)))[-1] == "Buffer"
    assert functions.buffer_types(farcall.rpc_sync(to, "test.echo", (np.zeros(10_000),)))[-1] == "Buffer"


def test_sent_without_a_copy(pair):
    """While a call is pending its message holds the array itself."""
    array = np.zeros(5_000_000)
    stuck = [farcall.rpc_async("w1", functions.wait_gate, ("arrays",))]
    live = _farcall.memory_live()
    assert live > 0
    export_count = ExportCounter(array)
    future = farcall.rpc_async("w1", functions.describe, (array,))
    assert future.wait()["sum"] == 0
    farcall.rpc_sync("w1", functions.open_gate, ("arrays",))
    farcall.wait_all(stuck)
    del future
    export_count.wait_free()


class ExportCounter:
    """Sees whether anything holds a view of an array: numpy counts references only."""

    def __init__(self, array):
        import sys

        self.array = array
        self.count = sys.getrefcount(array)

    def wait_free(self):
        import sys

        while sys.getrefcount(self.array) > self.count:
            farcall.rpc_sync("w1", functions.nothing)


def test_only_the_bytes_of_a_view_travel(pair):
    big = np.zeros(4_000_000)
    before = farcall.metrics()["bytes_sent"]
    assert farcall.rpc_sync("w1", functions.describe, (big[10:20],))["shape"] == (10,)
    assert farcall.rpc_sync("w1", functions.describe, (big[::400_000],))["shape"] == (10,)
    assert farcall.rpc_sync("w1", functions.describe, (big[1000:3000],))["shape"] == (2000,)
    assert farcall.rpc_sync("w1", "test.add", (big[::400_000], 1.0)).shape == (10,)
    assert farcall.metrics()["bytes_sent"] - before < 100_000


def test_memory_lives_as_long_as_anything_uses_it(pair):
    back = farcall.rpc_sync("w1", functions.echo, (np.arange(10_000.0),))
    tail = back[9_990:]
    del back
    gc.collect()
    assert tail.sum() == np.arange(9_990.0, 10_000.0).sum()
    farcall.rpc_sync("w1", functions.keep, (np.ones(5000),))
    farcall.rpc_sync("w1", functions.keep, (np.ones(6000),))
    assert farcall.rpc_sync("w1", functions.kept_sum) == [5000.0, 6000.0]
    farcall.rpc_sync("w1", functions.forget)


def test_all_is_given_back(pair):
    farcall.rpc_sync("w1", functions.echo, (np.zeros(10),))
    gc.collect()
    before = _farcall.memory_live()
    for _ in range(20):
        farcall.rpc_sync("w1", functions.echo, (np.zeros(100_000),))
        farcall.rpc_sync("w0", functions.echo, (np.zeros(100_000),))
        farcall.rpc_sync("w1", "test.echo", (np.zeros(100_000),))
        farcall.rpc_async("w1", functions.echo, (np.zeros(100_000),)).wait()
    gc.collect()
    # Pooled blocks may stay; what grows with the calls may not.
    assert _farcall.memory_live() < before + 20


def test_self_calls_copy(pair):
    array = np.zeros(10_000)
    future = farcall.rpc_async("w0", functions.keep, (array,))
    future.wait()
    array[:] = 1
    assert functions.kept_sum() == [0.0]
    functions.kept[0][:] = 2
    assert array.sum() == 10_000
    functions.forget()


def test_snapshot(pair):
    """copy=True: the caller may go on with its array at once."""
    for to in ("w0", "w1"):
        array = np.zeros(2_000_000)
        future = farcall.rpc_async(to, functions.describe, (array,), copy=True)
        array[:] = 1
        assert future.wait()["sum"] == 0


@pytest.mark.parametrize("array", [
    np.array(["a"], dtype=object), np.zeros(3, dtype=">f8"), np.zeros(2, dtype="U3"),
    np.zeros(2, dtype=[("a", "f4")]), np.zeros(2, dtype=np.longdouble),
], ids=lambda a: str(a.dtype))  # fmt: skip
def test_arrays_that_values_cannot_say(pair, array):
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync("w1", "test.echo", (array,))
    same(farcall.rpc_sync("w1", functions.echo, (array,)), array)


def test_numpy_scalars_by_exported_name(pair):
    for scalar in (np.float32(1.5), np.int16(-3), np.bool_(True), np.uint64(2**64 - 1)):
        back = farcall.rpc_sync("w1", "test.echo", (scalar,))
        assert back == scalar.item() and type(back) is type(scalar.item())


def test_dlpack_by_exported_name(pair):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    back = farcall.rpc_sync("w1", "test.echo", (tensor,))
    assert (back == tensor.numpy()).all()
    back = farcall.rpc_sync("w1", "test.echo", (tensor.T,))
    assert (back == tensor.numpy().T).all()


@BOTH
def test_large(pair, to):
    array = np.arange(30_000_000, dtype=np.int32)
    back = farcall.rpc_sync(to, functions.echo, (array,))
    assert back.shape == array.shape and (back[:: 1 << 16] == array[:: 1 << 16]).all()
    text = b"z" * 20_000_000
    assert farcall.rpc_sync(to, functions.echo, (text,)) == text


@BOTH
def test_empty(pair, to):
    for shape in ((0,), (3, 0), (0, 2, 5)):
        for name in (functions.echo, "test.echo"):
            assert farcall.rpc_sync(to, name, (np.zeros(shape),)).shape == shape
