# SPDX-License-Identifier: BSD-3-Clause
"""What goes wrong at the other worker, and how it is seen here."""

import pickle

import farcall
import functions
import pytest
from functions import Custom, Explodes, HoldsLock, NeedsTwo

BOTH = pytest.mark.parametrize("to", ["w0", "w1"])


def raised(to, func, *args):
    with pytest.raises(BaseException) as caught:
        farcall.rpc_sync(to, func, args)
    future = farcall.rpc_async(to, func, args)
    assert type(future.exception()) is type(caught.value)
    return caught.value


@BOTH
@pytest.mark.parametrize("kind, args", [
    (ValueError, ("bad",)), (KeyError, ("k", 1)), (ZeroDivisionError, ()), (OSError, (2, "no", "f")),
    (UnicodeDecodeError, ("utf-8", b"\xff", 0, 1, "why")), (Exception, ("plain",)),
    (StopIteration, (3,)), (ExceptionGroup, ("g", [ValueError(1), KeyError(2)])),
    (AssertionError, ("\u00e4 \udc80",)),
], ids=lambda x: getattr(x, "__name__", ""))  # fmt: skip
def test_exceptions_keep_type_and_arguments(pair, to, kind, args):
    error = raised(to, functions.fail, kind, *args)
    assert type(error) is type(kind(*args))
    if kind is not ExceptionGroup:
        assert error.args == kind(*args).args
    assert error.remote_worker == farcall.get_worker_info(to)
    assert isinstance(error.__cause__, farcall.RemoteTraceback)
    assert "functions.py" in str(error.__cause__) and "in fail" in str(error.__cause__)


@BOTH
def test_attributes_and_own_types(pair, to):
    error = raised(to, functions.fail_attribute)
    assert error.args == ("with more", 3) and error.extra == {"a": 1}
    error = raised(to, functions.fail_custom)
    assert type(error) is Custom and error.hint == "seven"
    error = raised(to, functions.fail_chained)
    assert "invalid literal" in str(error.__cause__)


@BOTH
@pytest.mark.parametrize("func, args, name, text", [
    (functions.system_exit, (3,), "SystemExit", "3"),
    (functions.interrupt, (), "KeyboardInterrupt", "not really"),
    (functions.fail, (NeedsTwo, 1, 2), "functions.NeedsTwo", "1 and 2"),
    (functions.fail, (HoldsLock, "held"), "functions.HoldsLock", "held"),
    (functions.fail, (GeneratorExit, "gone"), "GeneratorExit", "gone"),
])  # fmt: skip
def test_what_cannot_be_raised_here(pair, to, func, args, name, text):
    error = raised(to, func, *args)
    assert type(error) is farcall.RemoteError
    assert (error.type_name, error.text) == (name, text)
    assert name.split(".")[-1] in error.traceback
    assert error.remote_worker == farcall.get_worker_info(to)
    assert name in str(error)
    # The worker goes on.
    assert farcall.rpc_sync(to, functions.me) == to


@BOTH
def test_exceptions_with_code_of_their_own(pair, to):
    """None of it ends this process, and none hides what happened."""
    error = raised(to, functions.fail, functions.Exits, "x")
    assert type(error) is farcall.RemoteError
    assert error.type_name == "functions.Exits" and "in fail" in error.traceback
    error = raised(to, functions.fail, functions.ExitsLater, "later")
    assert type(error) is farcall.RemoteError
    assert (error.type_name, error.text) == ("functions.ExitsLater", "later")
    error = raised(to, functions.fail, functions.Rigid, "rigid")
    assert type(error) is functions.Rigid and error.args == ("rigid",)
    assert isinstance(error.__cause__, farcall.RemoteTraceback)


@BOTH
@pytest.mark.parametrize("func", [functions.return_exits, functions.return_exits_later])
def test_results_that_exit(pair, to, func):
    error = raised(to, func)
    assert type(error) is farcall.SerializationError
    assert type(error.__cause__) is SystemExit or "SystemExit" in str(error)


@BOTH
@pytest.mark.parametrize("func", [functions.return_lock, functions.return_generator])
def test_results_that_do_not_pickle(pair, to, func):
    error = raised(to, func)
    assert type(error) is farcall.SerializationError
    assert to in str(error) and func.__name__ in str(error)
    assert error.remote_worker is None


def test_result_that_cannot_be_read_here(pair):
    error = raised("w1", functions.return_only_here)
    assert type(error) is farcall.SerializationError
    assert type(error.__cause__) is ValueError


@BOTH
def test_argument_whose_unpickling_raises(pair, to):
    error = raised(to, functions.echo, Explodes())
    assert type(error) is RuntimeError and error.args == ("this argument explodes",)
    assert error.remote_worker == farcall.get_worker_info(to)
    assert farcall.rpc_sync(to, functions.me) == to


@BOTH
def test_wrong_arguments_for_the_function(pair, to):
    error = raised(to, functions.add)
    assert type(error) is TypeError and "missing" in str(error)


def test_a_local_exception_type(pair):
    """A type that was sent by value comes back as itself."""
    pytest.importorskip("cloudpickle")

    class Local(Exception):
        pass

    def fail():
        raise Local("here")

    with pytest.raises(Local, match="here"):
        farcall.rpc_sync("w1", fail)


def test_hierarchy():
    assert issubclass(farcall.RpcError, RuntimeError)
    for name, base in [
        ("RpcTimeoutError", TimeoutError),
        ("RpcCancelledError", farcall.RpcError),
        ("WorkerLostError", ConnectionError),
        ("UnknownWorkerError", LookupError),
        ("UnknownFunctionError", farcall.RpcError),
        ("RemoteError", farcall.RpcError),
        ("SerializationError", farcall.RpcError),
        ("BackpressureError", farcall.RpcError),
        ("NotInitializedError", farcall.RpcError),
        ("AlreadyInitializedError", farcall.RpcError),
        ("AgentClosedError", farcall.RpcError),
        ("AuthenticationError", farcall.RpcError),
        ("VersionError", farcall.RpcError),
    ]:
        kind = getattr(farcall, name)
        assert issubclass(kind, farcall.RpcError) and issubclass(kind, base)
        error = kind("text")
        error.remote_worker = farcall.WorkerInfo("w", 1)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and again.args == error.args
        assert again.remote_worker == error.remote_worker


def test_a_handlers_own_farcall_error_says_where(pair):
    """Its nested call failed: it is no error of this call's own."""
    with pytest.raises(farcall.UnknownWorkerError) as caught:
        farcall.rpc_sync("w1", functions.forward, ("nobody", functions.me))
    assert caught.value.remote_worker == farcall.get_worker_info("w1")
    with pytest.raises(farcall.UnknownFunctionError) as caught:
        farcall.rpc_sync("w1", functions.forward, ("w0", "no.such"))
    assert caught.value.remote_worker == farcall.get_worker_info("w1")


def test_one_failed_call_harms_no_other(pair):
    futures = []
    for i in range(200):
        futures.append(farcall.rpc_async("w1", functions.fail, (ValueError, i)))
        futures.append(farcall.rpc_async("w1", functions.add, (i, i)))
        futures.append(farcall.rpc_async("w1", functions.system_exit, (i,)))
    for i in range(200):
        bad, good, gone = futures[3 * i : 3 * i + 3]
        assert bad.exception().args == (i,)
        assert good.wait() == 2 * i
        assert gone.exception().text == str(i)
