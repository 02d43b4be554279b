# SPDX-License-Identifier: BSD-3-Clause
"""Starting and stopping, and everything that ends a process."""

import os
import queue
import signal
import subprocess
import sys
import threading

import farcall
import functions
import pytest
import support

GUARD_S = 60


def test_before_init_and_after_shutdown(tmp_path):
    code = f"""
import farcall
def check(kind):
    for call in (
        lambda: farcall.rpc_sync("w0", len, ("",)), lambda: farcall.rpc_async(0, len, ("",)),
        farcall.get_worker_info, farcall.get_worker_infos, farcall.get_rpc_timeout, farcall.metrics,
        farcall.shutdown, farcall.Future, lambda: farcall.set_rpc_timeout(1),
    ):
        try:
            call()
        except kind:
            continue
        raise AssertionError(call)
check(farcall.NotInitializedError)
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
future = farcall.rpc_async("w0", len, ("ab",))
assert future.wait() == 2
try:
    farcall.init_rpc("w0", 0, 1)
except farcall.AlreadyInitializedError:
    farcall.shutdown()
check(farcall.AgentClosedError)
assert future.wait() == 2
print("fine")
"""
    assert support.finish(support.python("-c", code)) == "fine\n"


def test_importing_starts_nothing():
    code = """
import os, threading, farcall
assert threading.active_count() == 1
assert len(os.listdir("/proc/self/task")) == 1
assert not [f for f in os.listdir("/proc/self/fd") if "socket" in os.path.realpath(f"/proc/self/fd/{f}")]
assert farcall._farcall.memory_live() == 0
"""
    support.finish(support.python("-c", code))


def test_alone(job):
    job(workers=1)
    assert farcall.rpc_sync("w0", functions.add, (1, 2)) == 3
    assert farcall.get_worker_infos() == [farcall.WorkerInfo("w0", 0)]


@pytest.mark.parametrize("method", ["file", "tcp"])
def test_four(job, method):
    job(workers=4, method=method)
    for i in range(4):
        assert farcall.rpc_sync(i, functions.me) == f"w{i}"
        for k in range(4):
            assert farcall.rpc_sync(i, functions.forward, (k, functions.me)) == f"w{k}"


def test_env(tmp_path):
    code = """
import farcall
farcall.init_rpc(f"w{__import__('os').environ['RANK']}")
assert farcall.rpc_sync("w1", pow, (2, 5)) == 32
farcall.shutdown()
"""
    where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(support.free_port()), WORLD_SIZE="2")
    processes = [
        support.python("-c", code, env=support.environment(RANK=str(rank), **where))
        for rank in range(2)
    ]
    for process in processes:
        support.finish(process)


@pytest.mark.parametrize("method", ["file", "tcp"])
def test_again_and_again(tmp_path, method):
    """Twenty times in the same two processes, at the same place, leaving nothing behind."""
    where = f"file://{tmp_path}/meet"
    if method == "tcp":
        where = f"tcp://127.0.0.1:{support.free_port()}"
    code = f"""
import gc, farcall
for _ in range(20):
    farcall.init_rpc("w1", 1, 2, init_method={where!r})
    farcall.shutdown()
    gc.collect()
    assert farcall._farcall.memory_live() == 0
"""
    other = support.python("-c", code)
    for i in range(20):
        farcall.init_rpc("w0", 0, 2, init_method=where)
        assert farcall.rpc_sync("w1", pow, (i, 2)) == i * i
        farcall.shutdown()
        support.nothing_left()
    support.finish(other)


def test_two_agents_in_one_process(tmp_path):
    method = f"file://{tmp_path}/meet"
    made = []

    def make(rank):
        made.append(farcall.Agent(f"a{rank}", rank, 2, init_method=method))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, two = sorted(made, key=lambda agent: agent.id)
    assert one.rpc_sync("a1", functions.add, (1, 2)) == 3
    assert two.rpc_async("a0", functions.add, (1, 2)).wait() == 3
    assert repr(one) == "<farcall.Agent 'a0', id 0>"
    ends = [threading.Thread(target=agent.shutdown) for agent in (one, two)]
    for thread in ends:
        thread.start()
    for thread in ends:
        thread.join()
    assert one.closed and two.closed
    with pytest.raises(farcall.AgentClosedError):
        one.rpc_sync("a1", functions.nothing)
    one.shutdown(graceful=False)  # does no harm
    made.clear()
    del one, two, ends, threads, thread
    support.nothing_left()


def test_service_loops_return_at_shutdown(job):
    job(workers=2)
    farcall.rpc_async("w1", functions.serve_until_closing, ("loop",))
    while "loop" not in farcall.rpc_sync("w1", functions.read_log):
        pass


def test_shutdown_with_a_limit_leaves_the_agent_open(job):
    job(workers=2)
    # w1 has asked for shutdown at once; a handler of this worker keeps the job alive.
    stuck = farcall.rpc_async("w1", functions.wait_gate, ("shut",))
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.shutdown(timeout=0.3)
    assert farcall.rpc_sync("w1", functions.add, (1, 1)) == 2
    farcall.rpc_sync("w1", functions.open_gate, ("shut",))
    assert stuck.wait() == "shut"


def test_graceful_shutdown_inside_a_handler_is_refused(job):
    job(workers=1)
    with pytest.raises(farcall.RpcError, match="handler"):
        farcall.rpc_sync("w0", farcall.shutdown)


def test_graceful_shutdown_inside_a_callback_is_refused(job):
    job(workers=2)
    errors = queue.Queue()

    def leave(future):
        try:
            farcall.shutdown()
        except Exception as error:
            errors.put(error)

    future = farcall.rpc_async("w1", functions.wait_gate, ("callback",))
    future.add_done_callback(leave)
    farcall.rpc_sync("w1", functions.open_gate, ("callback",))
    assert "callback" in str(errors.get(timeout=GUARD_S))
    assert farcall.rpc_sync("w1", functions.add, (1, 2)) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_closing_ends_a_shutdown_that_waits(tmp_path, rank):
    """So Ctrl-C gets out of it as well, and not only when shutdown looks up to log, after 10 s."""
    code = f"""
import signal, sys, threading, time, farcall, functions
rank = int(sys.argv[1])
farcall.init_rpc(f"w{{rank}}", rank, 2, init_method="file://{tmp_path}/meet")
stuck = farcall.rpc_async(rank, functions.wait_gate, ("stuck",))
if rank == {rank}:
    def press():
        functions.wait_closing()
        functions.begin = time.monotonic()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    farcall.rpc_async(rank, press)
    try:
        farcall.shutdown()
    except KeyboardInterrupt:
        print("interrupted" if time.monotonic() - functions.begin < 8 else "late")
else:
    functions.open_gate("stuck")
    try:
        farcall.shutdown()
    except farcall.WorkerLostError:
        print("lost")
"""
    processes = [support.python("-c", code, i) for i in range(2)]
    for i, process in enumerate(processes):
        out, err = process.communicate(timeout=GUARD_S)
        assert process.returncode == 0, err
        assert out == ("interrupted\n" if i == rank else "lost\n"), err


def test_leaving_at_once(job):
    one = job(workers=2)
    future = farcall.rpc_async("w1", functions.wait_cancelled, ("left",))
    assert farcall.rpc_sync("w1", functions.me) == "w1"
    farcall.shutdown(graceful=False)
    assert isinstance(future.exception(), farcall.AgentClosedError)
    # The other sees that its caller and rank 0 are gone, and ends well.
    assert support.finish(one.processes[0]) == "live 0\n"
    one.lost.add("w1")


# ---- death


def test_a_killed_worker_ends_its_calls(job):
    one = job(workers=2)
    future = farcall.rpc_async("w1", functions.wait_gate, ("dead",))  # no limit
    with pytest.raises(farcall.WorkerLostError) as caught:
        farcall.rpc_sync("w1", functions.kill_me)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.worker == farcall.WorkerInfo("w1", 1)
    assert caught.value.may_have_run and caught.value.reason
    with pytest.raises(farcall.WorkerLostError):
        future.wait()
    one.lost.add("w1")
    with pytest.raises(farcall.WorkerLostError):
        farcall.rpc_sync("w1", functions.nothing, timeout=20)
    assert farcall.rpc_sync("w0", functions.add, (1, 2)) == 3


def test_a_killed_worker_harms_no_other(job):
    one = job(workers=3)
    futures = [farcall.rpc_async("w2", functions.wait_gate, ("other",)) for _ in range(10)]
    one.kill("w1")
    with pytest.raises(farcall.RpcError):
        farcall.rpc_sync("w1", functions.nothing, timeout=30)
    farcall.rpc_sync("w2", functions.open_gate, ("other",))
    assert farcall.wait_all(futures) == ["other"] * 10


def test_ctrl_c_in_a_waiting_call(tmp_path):
    code = f"""
import os, signal, threading, farcall, functions
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
def press():
    while "in" not in functions.log:
        pass
    os.kill(os.getpid(), signal.SIGINT)
def handler():
    functions.log.append("in")
    functions.wait_cancelled("told")
for wait in (
    lambda: farcall.rpc_sync("w0", handler),
    lambda: farcall.rpc_async("w0", handler).wait(),
    lambda: farcall.wait_all([farcall.rpc_async("w0", handler)]),
):
    functions.log.clear()
    thread = threading.Thread(target=press)
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    thread.join()
assert farcall.rpc_sync("w0", len, ("abc",)) == 3
farcall.shutdown(graceful=False)
"""
    out = support.finish(support.python("-c", code))
    assert out == "interrupted\n" * 3


def test_ctrl_c_while_joining(tmp_path):
    code = f"""
import farcall
print("go", flush=True)
try:
    farcall.init_rpc("w0", 0, 2, init_method="file://{tmp_path}/meet")
except KeyboardInterrupt:
    print("interrupted")
"""
    process = support.python("-c", code)
    assert process.stdout.readline() == "go\n"
    # It may be anywhere between the two lines; pressed again until it has gone.
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    process.communicate(timeout=GUARD_S)


def test_signals_do_not_end_a_wait(job):
    """A handler of the user's that raises nothing: the wait goes on."""
    job(workers=2)
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        future = farcall.rpc_async("w1", functions.wait_gate, ("signal",))

        def press():
            for _ in range(5):
                os.kill(os.getpid(), signal.SIGUSR1)
            farcall.rpc_sync("w1", functions.open_gate, ("signal",))

        thread = threading.Thread(target=press)
        thread.start()
        assert future.wait() == "signal"
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen


# ---- forks and exits


def test_a_forked_child_may_init_anew(job, tmp_path):
    job(workers=2)
    assert farcall.rpc_sync("w1", functions.add, (1, 2)) == 3
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                farcall.rpc_sync("w1", functions.add, (1, 2))
            except farcall.AgentClosedError as error:
                assert "fork" in str(error)
                farcall.init_rpc("c0", 0, 1, init_method=f"file://{tmp_path}/child")
                assert farcall.rpc_sync("c0", functions.add, (3, 4)) == 7
                farcall.shutdown()
                os.write(write, b"fine")
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    text = b""
    while part := os.read(read, 1000):
        text += part
    os.close(read)
    os.waitpid(child, 0)
    assert text == b"fine"
    assert farcall.rpc_sync("w1", functions.add, (1, 2)) == 3


def test_a_handler_that_forks(job):
    """The child comes back out of the handler, which nobody should do; it ends, and that is all."""
    job(workers=2)
    for to in ("w0", "w1"):
        assert farcall.rpc_sync(to, functions.fork) == 0
        assert farcall.rpc_sync(to, functions.add, (1, 2)) == 3


@pytest.mark.parametrize("end", [
    "", "raise SystemExit(0)", "future = farcall.rpc_async('w0', functions.wait_gate, ('x',))",
    "farcall.rpc_async('w0', time.sleep, (3600,))",
    "kept = [farcall.rpc_sync('w0', functions.ones, (100000,)) for _ in range(3)]",
    "farcall.rpc_async('w0', functions.add, (1, 2)).add_done_callback(print)",
])  # fmt: skip
def test_exit_without_shutdown(tmp_path, end):
    code = f"""
import farcall, functions, time
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
assert farcall.rpc_sync("w0", functions.add, (1, 2)) == 3
{end}
"""
    support.finish(support.python("-c", code))


def test_exit_with_calls_in_flight_to_another(job):
    one = job(workers=2)
    code = "import farcall"
    assert support.finish(support.python("-c", code)) == ""
    futures = [farcall.rpc_async("w1", functions.wait_gate, ("exit",)) for _ in range(5)]
    one.kill("w1")
    for future in futures:
        assert isinstance(future.exception(), farcall.WorkerLostError)


# ---- what cannot start


def start_both(first, second):
    processes = [support.python("-c", code) for code in (first, second)]
    outs = []
    for process in processes:
        out, err = process.communicate(timeout=GUARD_S)
        outs.append((process.returncode, out, err))
    return outs


def joins(name, rank, size, method, more=""):
    return f"""
import farcall
try:
    farcall.init_rpc({name!r}, {rank!r}, {size!r}, init_method={method!r}{more})
except Exception as error:
    print(type(error).__name__, error)
else:
    print("joined")
    farcall.shutdown()
"""


def test_duplicate_names(tmp_path):
    method = f"file://{tmp_path}/meet"
    for code, out, err in start_both(joins("same", 0, 2, method), joins("same", 1, 2, method)):
        assert "same" in out and "Error" in out and "joined" not in out, err


def test_duplicate_ranks(tmp_path):
    method = f"file://{tmp_path}/meet"
    outs = []
    processes = [
        support.python("-c", joins(name, rank, 3, method))
        for name, rank in (("a", 0), ("b", 1), ("c", 1))
    ]
    for process in processes:
        outs.append(process.communicate(timeout=GUARD_S)[0])
    assert all("Error" in out and "b" in out and "c" in out for out in outs), outs


def test_wrong_secret(tmp_path):
    port = support.free_port()
    options = ", options=farcall.Options(secret={!r}, init_timeout=5)"
    method = f"tcp://127.0.0.1:{port}"
    outs = start_both(
        joins("a", 0, 2, method, options.format("one")), joins("b", 1, 2, method, options.format("two"))
    )
    assert outs[1][1].startswith("AuthenticationError"), outs
    assert outs[0][1].startswith(("RpcTimeoutError", "AuthenticationError")), outs


def test_missing_workers_are_named(tmp_path):
    options = farcall.Options(init_timeout=0.5)
    with pytest.raises(farcall.RpcTimeoutError, match="1"):
        farcall.init_rpc("w0", 0, 2, init_method=f"file://{tmp_path}/meet", options=options)
    with pytest.raises(farcall.RpcError):
        farcall.rpc_sync("w0", functions.nothing)
    support.nothing_left()


def test_unreachable_master():
    options = farcall.Options(init_timeout=0.5)
    method = f"tcp://127.0.0.1:{support.free_port()}"
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.init_rpc("w1", 1, 2, init_method=method, options=options)
    support.nothing_left()


def test_port_in_use():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(farcall.RpcError, match=str(port)):
            farcall.init_rpc("w0", 0, 1, init_method=f"tcp://127.0.0.1:{port}")
    support.nothing_left()


@pytest.mark.parametrize("name", ["", "x" * 200, "a b", "a/b", "\u00e4", "a\0b"], ids=ascii)
def test_wrong_names(name):
    with pytest.raises(ValueError):
        farcall.init_rpc(name, 0, 1)


@pytest.mark.parametrize("method", ["", "nonsense", "http://x", "tcp://", "tcp://x:99999", "file://"])
def test_wrong_methods(method):
    with pytest.raises((ValueError, farcall.RpcError)):
        farcall.init_rpc("w0", 0, 1, init_method=method, options=farcall.Options(init_timeout=2))
    support.nothing_left()


@pytest.mark.parametrize("arguments, kind", [
    (dict(name=3), TypeError), (dict(rank="0"), TypeError), (dict(rank=True), TypeError),
    (dict(rank=-2), ValueError), (dict(rank=5), ValueError), (dict(world_size="2"), TypeError),
    (dict(world_size=-1), ValueError), (dict(rpc_timeout="1"), TypeError),
    (dict(rpc_timeout=-1), ValueError), (dict(options={}), TypeError), (dict(init_method=1), TypeError),
])  # fmt: skip
def test_wrong_arguments(arguments, kind):
    given = dict(name="w0", rank=0, world_size=1, init_method="tcp://127.0.0.1:1")
    with pytest.raises(kind):
        farcall.init_rpc(**{**given, **arguments})
    support.nothing_left()


@pytest.mark.parametrize("arguments, kind", [
    (dict(threads=0), ValueError), (dict(threads="1"), TypeError), (dict(threads_max=True), TypeError),
    (dict(secret=3), TypeError), (dict(transports="unix"), TypeError), (dict(transports=("ib",)), ValueError),
    (dict(transports=()), ValueError), (dict(log_level="loud"), ValueError),
    (dict(message_size_max=0), ValueError), (dict(nonsense=1), TypeError),
])  # fmt: skip
def test_wrong_options(arguments, kind):
    with pytest.raises(kind):
        farcall.Options(**arguments)


def test_options_do_not_show_the_secret():
    assert "hidden" not in repr(farcall.Options(secret="hidden"))


def test_message_size_max(job):
    job(workers=2, options=farcall.Options(message_size_max=1 << 20))
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync("w1", len, (b"x" * (2 << 20),))
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync("w0", len, (b"x" * (2 << 20),))
    assert farcall.rpc_sync("w1", len, (b"x" * 1000,)) == 1000


def test_five_gibibytes(job):
    """Above the limit: said at the call. The pages of the array are never touched."""
    np = pytest.importorskip("numpy")
    job(workers=2, options=farcall.Options(message_size_max=1 << 32))
    huge = np.zeros(5 << 30, np.uint8)
    for func in (functions.describe, "test.echo"):
        for call in (farcall.rpc_sync, farcall.rpc_async):
            with pytest.raises(farcall.SerializationError, match="limit"):
                call("w1", func, (huge,))
    assert farcall.rpc_sync("w1", functions.echo, (b"",)) == b""


def test_one_thread_at_most(job):
    job(workers=2, options=farcall.Options(threads=1, threads_max=1))
    assert [farcall.rpc_sync("w1", functions.forward, ("w0", functions.add, (i, 1))) for i in range(20)]
    assert farcall.debug_info()["handler_threads"] <= 1


def test_inherited_deadline(job):
    job(workers=1, options=farcall.Options(inherit_deadline=True))
    assert farcall.rpc_sync("w0", functions.forward, ("w0", functions.remaining)) is None
    left = farcall.rpc_sync("w0", functions.forward, ("w0", functions.remaining), timeout=100)
    assert 50 < left <= 100
    left = farcall.rpc_sync("w0", functions.forward, ("w0", functions.remaining, (), 5), timeout=100)
    assert left <= 5


def test_a_default_from_init(job):
    job(workers=1, rpc_timeout=2.5)
    assert farcall.get_rpc_timeout() == 2.5


def test_typed():
    """The stubs say what the module has."""
    import ast
    from pathlib import Path

    from farcall import _farcall

    stub = Path(_farcall.__file__).with_name("_farcall.pyi")
    names = {node.name for node in ast.parse(stub.read_text()).body if hasattr(node, "name")}
    missing = {n for n in vars(_farcall) if not n.startswith("__")} - names
    assert not missing
    assert sys.version_info >= (3, 11)
