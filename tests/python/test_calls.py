# SPDX-License-Identifier: BSD-3-Clause
"""Calls: which functions, which arguments, to whom; and what is refused at the call."""

import functools
import math
import operator
import sys
import threading
import types

import farcall
import functions
import pytest
import support
from farcall import _farcall
from functions import Counter

BOTH = pytest.mark.parametrize("to", ["w0", "w1"])


@BOTH
@pytest.mark.parametrize("value", [
    None, True, 0, -1, 2**63, -(2**70), 1.5, math.inf, "", "\u00e4\U0001f600", b"", b"\0\xff", (), [], {},
    (1, [2, {"three": 4}]), {1, 2}, frozenset({3}), range(3), complex(1, 2), ..., Exception, int,
    "x" * 5000, b"y" * 1_000_000, list(range(1000)),
], ids=lambda value: repr(value)[:20])  # fmt: skip
def test_echo(pair, to, value):
    assert farcall.rpc_sync(to, functions.echo, (value,)) == value
    assert farcall.rpc_async(to, functions.echo, args=(value,)).wait() == value


@BOTH
def test_kinds_of_functions(pair, to):
    def call(func, *args, **kwargs):
        return farcall.rpc_sync(to, func, args, kwargs)

    assert call(pow, 2, 10) == 1024
    assert call(math.sqrt, 16) == 4
    assert call(operator.add, 1, 2) == 3
    assert call(len, "abc") == 3
    assert call(int, "12") == 12
    assert call(dict.fromkeys, "ab", 1) == {"a": 1, "b": 1}
    assert call(str.upper, "abc") == "ABC"
    assert call(list.count, [1, 1, 2], 1) == 2
    assert call("abc".upper) == "ABC"
    assert call([3, 4].index, 4) == 1
    assert call(Counter, 5) == Counter(5)
    assert call(Counter(5).add, 2) == 7
    assert call(Counter.add, Counter(1), by=2) == 3
    assert call(Counter(5), 3) == 8
    assert call(Counter.named) == "Counter"
    assert call(Counter.double, 4) == 8
    assert call(functools.partial(pow, 2), 3) == 8
    assert call(functions.add, 1, b=2) == 3
    assert call(functions.Custom, 3).args == (3,)


@BOTH
def test_functions_without_a_home_go_by_value(pair, to):
    pytest.importorskip("cloudpickle")
    base = 40

    def local(x):
        return base + x

    assert farcall.rpc_sync(to, local, (2,)) == 42
    assert farcall.rpc_sync(to, lambda: "lambda") == "lambda"
    assert farcall.rpc_sync(to, sorted, ([1, 2, 3],), {"key": lambda x: -x}) == [3, 2, 1]
    assert farcall.rpc_sync(to, functools.partial(local, 3)) == 43


def test_a_replaced_function_is_called_as_it_is_now(pair):
    assert farcall.rpc_sync("w1", functions.replaceable) == "first"
    farcall.rpc_sync("w1", functions.replace)
    assert farcall.rpc_sync("w1", functions.replaceable) == "second"


@BOTH
def test_exported_names(pair, to):
    assert farcall.rpc_sync(to, "test.add", (1, 2)) == 3
    assert farcall.rpc_sync(to, "test.add", [1], {"b": 5}) == 6
    for value in (None, True, 7, -(2**63), 2**64 - 1, 1.5, "text", b"\0bytes", [1, [2]], {"a": {1: None}}):
        assert farcall.rpc_sync(to, "test.echo", (value,)) == value
    assert farcall.rpc_sync(to, "test.echo", ((1, 2),)) == [1, 2]  # a tuple arrives as a list
    assert farcall.rpc_sync(to, "test.echo", (bytearray(b"ab"),)) == b"ab"


@BOTH
@pytest.mark.parametrize("value", [object(), {1, 2}, 2**64, -(2**63) - 1, 1j, ValueError, "\ud800"], ids=repr)
def test_what_values_cannot_say(pair, to, value):
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync(to, "test.echo", (value,))
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_async(to, "test.echo", kwargs={"x": value})


@BOTH
def test_results_that_values_cannot_say(pair, to):
    with pytest.raises(farcall.SerializationError, match=f"{to}"):
        farcall.rpc_sync(to, "test.lock")


@BOTH
def test_errors_of_exported_functions_keep_their_type(pair, to):
    with pytest.raises(ValueError, match="wrong"):
        farcall.rpc_sync(to, "test.fail", ("wrong",))


@BOTH
def test_unknown_names(pair, to):
    with pytest.raises(farcall.UnknownFunctionError, match="no.such.name") as caught:
        farcall.rpc_sync(to, "no.such.name")
    assert caught.value.remote_worker is None


@pytest.mark.parametrize("module_name, name", [("no_such_module", "f"), ("functions", "not_there")])
def test_unknown_functions(pair, monkeypatch, module_name, name):
    def only_here():
        return None

    only_here.__module__, only_here.__qualname__, only_here.__name__ = module_name, name, name
    if module_name not in sys.modules:
        monkeypatch.setitem(sys.modules, module_name, types.ModuleType(module_name))
    monkeypatch.setattr(sys.modules[module_name], name, only_here, raising=False)
    assert farcall.rpc_sync("w0", only_here) is None
    with pytest.raises(farcall.UnknownFunctionError) as caught:
        farcall.rpc_sync("w1", only_here)
    for word in (module_name, name, "module that every worker can import", "cloudpickle"):
        assert word in str(caught.value)


def test_main_of_a_script_goes_by_reference(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        """
import sys, farcall
state = []
class Problem(Exception):
    pass
def remember(x):
    state.append(x)
    return len(state)
def fail():
    raise Problem("in main")
if __name__ == "__main__":
    rank = int(sys.argv[1])
    farcall.init_rpc(f"w{rank}", rank, 2, init_method=sys.argv[2])
    if rank == 0:
        assert [farcall.rpc_sync("w1", remember, (i,)) for i in range(3)] == [1, 2, 3]
        assert state == []
        try:
            farcall.rpc_sync("w1", fail)
        except Problem as error:
            print("problem", error)
    farcall.shutdown()
"""
    )
    method = f"file://{tmp_path}/meet"
    other = support.python(script, 1, method)
    assert support.finish(support.python(script, 0, method)) == "problem in main\n"
    support.finish(other)


def test_main_of_another_script_is_unknown_there(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(
        """
import sys, farcall
def mine():
    return 1
farcall.init_rpc("a", 0, 2, init_method=sys.argv[1])
try:
    farcall.rpc_sync("b", mine)
except farcall.UnknownFunctionError as error:
    print(error)
farcall.shutdown()
"""
    )
    two.write_text(
        """
import sys, farcall
farcall.init_rpc("b", 1, 2, init_method=sys.argv[1])
farcall.shutdown()
"""
    )
    method = f"file://{tmp_path}/meet"
    other = support.python(two, method)
    text = support.finish(support.python(one, method))
    support.finish(other)
    for word in ("__main__", "mine", "module", "cloudpickle"):
        assert word in text


def test_main_of_a_console_goes_by_value(tmp_path):
    pytest.importorskip("cloudpickle")
    method = f"file://{tmp_path}/meet"
    other = support.python(support.WORKER, "w1", 1, 2, method)
    code = f"""
import farcall
class Point:
    def __init__(self, x):
        self.x = x
def double(point):
    return Point(2 * point.x)
farcall.init_rpc("w0", 0, 2, init_method={method!r})
print(farcall.rpc_sync("w1", double, (Point(21),)).x)
farcall.shutdown()
"""
    assert support.finish(support.python("-c", code)) == "42\n"
    support.finish(other)


@BOTH
def test_arguments_are_values(pair, to):
    """What the callee changes the caller does not see, at itself neither."""
    given = [1, 2]
    assert farcall.rpc_sync(to, list.append, (given, 3)) is None
    assert given == [1, 2]
    assert farcall.rpc_sync(to, functions.echo, (given,)) is not given


@pytest.mark.parametrize("args", [5, "x", b"x", object()], ids=repr)
def test_wrong_args(pair, args):
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", functions.echo, args)


@pytest.mark.parametrize("kwargs", [5, [1], "x", {1: 2}], ids=repr)
def test_wrong_kwargs(pair, kwargs):
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", functions.echo, kwargs=kwargs)


def test_args_may_be_a_list_or_any_iterable(pair):
    assert farcall.rpc_sync("w1", functions.echo, [1, 2]) == (1, 2)
    assert farcall.rpc_sync("w1", functions.echo, iter((1, 2))) == (1, 2)
    assert farcall.rpc_sync("w1", functions.echo, ()) == ()


@pytest.mark.parametrize("func", [None, 5, [], object()], ids=repr)
def test_wrong_func(pair, func):
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", func)


@pytest.mark.parametrize("func", ["", "far.join", "x" * 256, "a\0b"], ids=repr)
def test_wrong_names_of_functions(pair, func):
    with pytest.raises(ValueError):
        farcall.rpc_sync("w1", func)


def test_wrong_parameters(pair):
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1")
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", functions.echo, (), None, None, 1)
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", functions.echo, nonsense=1)
    with pytest.raises(TypeError):
        farcall.rpc_sync("w1", functions.echo, func=functions.echo)


@pytest.mark.parametrize("to", ["w9", "", "w" * 200, 9, -1, 2**40, "\ud800x"], ids=repr)
def test_unknown_workers(pair, to):
    for call in (farcall.rpc_sync, farcall.rpc_async):
        with pytest.raises((farcall.UnknownWorkerError, UnicodeEncodeError)) as caught:
            call(to, functions.echo)
        assert isinstance(caught.value, (LookupError, ValueError))


@pytest.mark.parametrize("to", [None, 1.0, True, b"w1", ["w1"]], ids=repr)
def test_wrong_workers(pair, to):
    with pytest.raises(TypeError):
        farcall.rpc_sync(to, functions.echo)


def test_near_names_are_listed(pair):
    with pytest.raises(farcall.UnknownWorkerError, match="w1"):
        farcall.rpc_sync("w11", functions.echo)


def test_worker_infos(pair):
    one = farcall.get_worker_info("w1")
    assert one == farcall.WorkerInfo("w1", 1)
    assert farcall.get_worker_info().name == "w0"
    assert farcall.get_worker_info(1) == one == farcall.get_worker_info(one)
    assert farcall.get_worker_infos() == [farcall.WorkerInfo("w0", 0), one]
    for to in ("w1", 1, one):
        assert farcall.rpc_sync(to, functions.me) == "w1"
    assert farcall.rpc_sync("w1", functions.echo, (one,)) == one
    with pytest.raises(farcall.UnknownWorkerError):
        farcall.get_worker_info("nobody")


@BOTH
@pytest.mark.parametrize("value", [threading.Lock(), sys._getframe(), (x for x in ())], ids=lambda x: type(x).__name__)
def test_arguments_that_do_not_pickle(pair, to, value):
    before = farcall.metrics()["calls_started"]
    with pytest.raises(farcall.SerializationError, match="echo") as caught:
        farcall.rpc_sync(to, functions.echo, (value,))
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_async(to, functions.echo, ([value],))
    assert farcall.metrics()["calls_started"] == before


def test_without_cloudpickle(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(farcall.SerializationError, match="cloudpickle"):
        farcall.rpc_sync("w1", lambda: 1)


@BOTH
def test_current_call(pair, to):
    who, method = farcall.rpc_sync(to, functions.caller)
    assert who == farcall.get_worker_info()
    assert method == "py:functions:caller"
    with pytest.raises(farcall.RpcError):
        farcall.current_call()
    farcall.rpc_sync(to, functions.keep_current)
    with pytest.raises(farcall.RpcError):
        farcall.rpc_sync(to, functions.use_kept_current)


def test_export_is_checked():
    for wrong in ("", "far.x", "py:x", "x" * 256, "a\0b"):
        with pytest.raises(ValueError):
            farcall.export(wrong)
    with pytest.raises(TypeError):
        farcall.export(print)
    with pytest.raises(TypeError):
        farcall.export("test.five")(5)
    with pytest.raises(ValueError):
        farcall.export("test.echo")(len)
    assert farcall.export("test.echo")(functions.echo) is functions.echo


def test_metrics_and_debug_info(pair):
    before = farcall.metrics()
    farcall.rpc_sync("w1", functions.nothing)
    after = farcall.metrics()
    assert after["calls_started"] == before["calls_started"] + 1
    assert after["calls_completed"] == before["calls_completed"] + 1
    info = farcall.debug_info()
    assert info["name"] == "w0" and "test.echo" in info["exported"]


def test_many_threads(pair):
    wrong = []

    def work(k):
        for i in range(200):
            to = f"w{(i + k) % 2}"
            if farcall.rpc_sync(to, functions.add, (i, k)) != i + k:
                wrong.append((i, k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_handlers_that_wait_starve_nobody(pair):
    stuck = [farcall.rpc_async("w1", functions.wait_gate, ("stuck",)) for _ in range(40)]
    assert farcall.rpc_sync("w1", functions.add, (1, 2), timeout=60) == 3
    farcall.rpc_sync("w1", functions.open_gate, ("stuck",))
    assert farcall.wait_all(stuck) == ["stuck"] * 40


def test_version():
    assert farcall.__version__ == _farcall.version()
