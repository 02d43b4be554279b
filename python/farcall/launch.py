# SPDX-License-Identifier: BSD-3-Clause
"""Starts the workers of a job on this machine: ``farcall run -n N [--] program args``.

Stands alone: it needs the standard library only, and neither a farcall agent nor the extension. It
is one thread: an event loop over the workers' output, their pidfds and the signals that arrive.

Every worker is the leader of a session of its own. So a Ctrl-C at the terminal reaches the launcher
alone, which passes it on once, and all that a worker started can be ended with it. Should the
launcher be killed without warning, the kernel kills the workers (PR_SET_PDEATHSIG), and a keeper, a
forked process that waits for the launcher's end of a pipe to close, kills what they started and
removes the folder that holds the job's secret.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Union

__all__ = ["main", "run"]

GRACE_S = 5.0
PR_SET_PDEATHSIG = 1
READ_SIZE = 1 << 16
LINE_MAX = 1 << 20  # a longer line is cut, so that a worker cannot fill the launcher's memory
CLEAR_LINE = b"\r\x1b[K"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
             signal.SIGUSR1, signal.SIGUSR2)  # fmt: skip


class LaunchError(Exception):
    """A program that could not be started; ``code`` is what a shell would have returned."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


# --------------------------------------------------------------------------------------- output


class Sink:
    """One of the launcher's own streams, which the workers' lines are written to."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._transient = False  # the last thing written is a progress bar without its newline
        self.terminal = stream.isatty()
        self.broken = False

    def lines(self, data: bytes) -> None:
        """Writes whole lines."""
        self._write(CLEAR_LINE + data if self._transient else data)
        self._transient = False

    def transient(self, text: bytes) -> None:
        """Writes a line that the next thing written replaces. Terminals only."""
        self._write(CLEAR_LINE + text)
        self._transient = True

    def close(self) -> None:
        if self._transient:
            self._write(b"\n")
            self._transient = False

    def _write(self, data: bytes) -> None:
        if self.broken:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            self.broken = True


class Pipe:
    """One stream of one worker: cuts what arrives into lines and puts the rank before each."""

    def __init__(self, fd: int, rank: int, sink: Sink) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._prefix = b"[%d] " % rank
        self._sink = sink
        self._rest = b""

    def drain(self, everything: bool = False) -> bool:
        """Reads what is there now; all of it only if asked, for the sake of the other workers.
        False once nothing more can come."""
        while True:
            try:
                data = os.read(self.fd, READ_SIZE)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                return False
            self._take(data)
            if not everything:
                return True

    def close(self) -> None:
        os.close(self.fd)
        self.fd = -1
        if self._rest:
            self._sink.lines(self._prefix + self._rest + b"\n")
            self._rest = b""

    def _take(self, data: bytes) -> None:
        head, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            lines = head.split(b"\n")
            if self._sink.terminal:
                # Of what a progress bar drew in one line, only its last state is left.
                lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
            self._sink.lines(b"".join(self._prefix + line + b"\n" for line in lines))
        if self._sink.terminal and b"\r" in self._rest:
            shown = self._rest.rstrip(b"\r").rpartition(b"\r")[2]
            self._rest = b"\r" + shown
            self._sink.transient(self._prefix + shown)
        elif len(self._rest) > LINE_MAX:
            self._sink.lines(self._prefix + self._rest + b"\n")
            self._rest = b""


# --------------------------------------------------------------------------------------- keeper


class Keeper:
    """The launcher's side of the process that cleans up if the launcher is killed."""

    def __init__(self, folder: str) -> None:
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._writer)
                _keep(reader, folder)
            finally:
                os._exit(0)
        os.close(reader)

    def add(self, pid: int) -> None:
        self._tell(b"+%d\n" % pid)

    def remove(self, pid: int) -> None:
        self._tell(b"-%d\n" % pid)

    def close(self) -> None:
        """Ends the keeper, which removes the folder."""
        os.close(self._writer)
        os.waitpid(self._pid, 0)

    def _tell(self, line: bytes) -> None:
        # Without a keeper the job goes on: the kernel still ends the workers with the launcher.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, line)


def _keep(reader: int, folder: str) -> None:
    os.setsid()
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    # Whoever reads the launcher's output must see it end with the launcher.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    alive: set[int] = set()
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            pid = int(line[1:])
            if line[:1] == b"+":
                alive.add(pid)
            else:
                alive.discard(pid)
    for pid in alive:
        _signal_group(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


# -------------------------------------------------------------------------------------- workers


class Worker:
    """One process of the job."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], out: Sink, err: Sink
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.rank = rank
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.pipes = [
            Pipe(os.dup(process.stdout.fileno()), rank, out),
            Pipe(os.dup(process.stderr.fileno()), rank, err),
        ]
        process.stdout.close()
        process.stderr.close()
        self._process = process

    def reap(self) -> int:
        """Takes leave of a process that has ended: its exit code, or minus the signal's number."""
        # Not reaped yet, it still keeps its number from being given to somebody else.
        _signal_group(self.pid, signal.SIGKILL)
        os.close(self.pidfd)
        return self._process.wait()


def _die_with_parent(parent: int) -> Callable[[], None]:
    """What a worker does between fork and exec. The launcher has one thread, so that is safe."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it went before the kernel was asked to watch it
            os._exit(1)

    return arm


def _environment(rank: int, size: int, port: int, folder: str, columns: int) -> dict[str, str]:
    env = dict(os.environ)
    # What would outdo the settings below, or belongs to a job that this launcher was started in.
    for name in ("FARCALL_SECRET", "FARCALL_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        env.pop(name, None)
    env.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        FARCALL_INIT="file://" + os.path.join(folder, "meet"),
        FARCALL_SECRET_FILE=os.path.join(folder, "secret"),
        PYTHONUNBUFFERED="1",
    )
    if columns > 20:
        env["COLUMNS"] = str(columns - len(f"[{rank}] "))
    return env


def _free_port() -> int:
    """A port for programs that read MASTER_PORT. farcall itself meets by file, which no other
    program can take away in the meantime."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_secret(folder: str) -> None:
    fd = os.open(os.path.join(folder, "secret"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32) + "\n")


def _outcome(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# ------------------------------------------------------------------------------------------ job


Ready = Union[Pipe, Worker, None]  # None: signals have arrived


class Job:
    """The workers of one run, from their start until the last one has ended."""

    def __init__(self, grace_s: float, keeper: Keeper, signals: int) -> None:
        self._grace_s = grace_s
        self._keeper = keeper
        self._signals = signals
        self._out = Sink(sys.stdout.buffer)
        self._err = Sink(sys.stderr.buffer)
        self._workers: dict[int, Worker] = {}
        self._select = selectors.DefaultSelector()
        self._select.register(signals, selectors.EVENT_READ, None)
        self._kill_at: float | None = None
        self._interrupts = 0
        self._code = 0

    def start(self, command: Sequence[str], size: int, folder: str) -> None:
        port = _free_port()
        columns = 0
        if self._err.terminal:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        arm = _die_with_parent(os.getpid())
        for rank in range(size):
            try:
                process = subprocess.Popen(
                    command,
                    env=_environment(rank, size, port, folder, columns),
                    stdin=None if rank == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=arm,
                )
            except OSError as error:
                self._end()
                code = 127 if isinstance(error, FileNotFoundError) else 126
                raise LaunchError(f"cannot run {command[0]}: {error.strerror}", code) from error
            self._keeper.add(process.pid)
            worker = Worker(rank, process, self._out, self._err)
            self._workers[rank] = worker
            self._select.register(worker.pidfd, selectors.EVENT_READ, worker)
            for pipe in worker.pipes:
                self._select.register(pipe.fd, selectors.EVENT_READ, pipe)

    def wait(self) -> int:
        """Runs until all have ended; the exit code for the launcher."""
        while self._workers:
            limit = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._select.select(limit):
                ready: Ready = key.data
                if ready is None:
                    self._pass_on(os.read(self._signals, 4096))
                elif isinstance(ready, Worker):
                    self._ended(ready)
                elif ready.fd >= 0 and not ready.drain():
                    self._close(ready)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = None
            if (self._out.broken or self._err.broken) and not self._code:
                self._code = 128 + signal.SIGPIPE
                self._end()
        self._out.close()
        self._err.close()
        self._select.close()
        return self._code

    def say(self, text: str) -> None:
        self._err.lines(f"farcall run: {text}\n".encode())

    def _pass_on(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGTERM and self._kill_at is None:
                self._end()
                continue
            self._signal(number)
            self._interrupts += number == signal.SIGINT
            if self._interrupts == 2:
                self._end()

    def _signal(self, number: int) -> None:
        for worker in self._workers.values():
            _signal_group(worker.pid, number)

    def _end(self) -> None:
        if self._kill_at is None:
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + self._grace_s

    def _ended(self, worker: Worker) -> None:
        self._select.unregister(worker.pidfd)
        code = worker.reap()
        self._keeper.remove(worker.pid)
        del self._workers[worker.rank]
        for pipe in worker.pipes:
            if pipe.fd >= 0:
                pipe.drain(everything=True)
                self._close(pipe)
        if code == 0 or self._code:
            return
        self._code = code if code > 0 else 128 - code
        text = f"rank {worker.rank} (pid {worker.pid}) {_outcome(code)}"
        if self._workers and self._kill_at is None:
            text += f"; ending the other {len(self._workers)}"
        self.say(text)
        self._end()

    def _close(self, pipe: Pipe) -> None:
        self._select.unregister(pipe.fd)
        pipe.close()


@contextlib.contextmanager
def _caught_signals() -> Iterator[int]:
    """Gives a descriptor on which the number of each signal that arrives can be read."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # What is ignored stays so (nohup ignores SIGHUP), here and in the workers.
    caught = [n for n in PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
    old = {number: signal.signal(number, lambda *_: None) for number in caught}
    try:
        yield reader
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(reader)
        os.close(writer)


def run(command: Sequence[str], size: int, *, grace: float = GRACE_S) -> int:
    """Runs ``command`` as ``size`` workers on this machine and waits for all of them.

    Call it on the main thread of a process that has no other threads.

    :param command: the program and its arguments, as for :class:`subprocess.Popen`
    :param size: how many workers, at least 1
    :param grace: seconds between asking a worker to end (SIGTERM) and killing it
    :return: 0 if all ended with 0, else the exit code of the one that failed first, 128 + n if
        signal n killed it
    """
    sys.stdout.flush()
    sys.stderr.flush()
    folder = tempfile.mkdtemp(prefix="farcall-")  # mode 0700
    keeper = Keeper(folder)
    try:
        _write_secret(folder)
        with _caught_signals() as signals:
            job = Job(grace, keeper, signals)
            try:
                job.start(command, size, folder)
            except LaunchError as error:
                job.say(str(error))
                job.wait()
                return error.code
            return job.wait()
    finally:
        keeper.close()


# --------------------------------------------------------------------------------- command line


DESCRIPTION = """\
Starts N workers on this machine. Each finds RANK, WORLD_SIZE, LOCAL_RANK and where to meet in its
environment, so farcall.init_rpc(name) and far_agent_open need no address. A program ending in .py
is run by this Python, any other directly. Every line of output begins with the worker's rank. When
one worker fails, the others are ended, and its exit code (128 + n for signal n) is the result."""


def _size(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1 worker")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError("seconds, 0 or more")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farcall run",
        usage="farcall run -n N [--grace SECONDS] [--] (program | -m module) [args ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("-n", "--workers", type=_size, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE_S,
        metavar="SECONDS",
        help="between asking a worker to end and killing it (default %(default)g)",
    )
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's own options, and the command: all from the first word that is none of them."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return list(argv[:at]), list(argv[at + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        at += 2 if word in ("-n", "--workers", "--grace") else 1
    return list(argv[:at]), list(argv[at:])


def _run_main(argv: Sequence[str]) -> int:
    own, command = _split(argv)
    parser = _parser()
    args = parser.parse_args(own)
    if not command or command == ["-m"]:
        parser.error("which program?")
    if command[0] == "-m" or command[0].endswith(".py"):
        command.insert(0, sys.executable)
    return run(command, args.workers, grace=args.grace)


def main(argv: Sequence[str] | None = None) -> int:
    """The program ``farcall``. Returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        return _run_main(words[1:])
    usage = "usage: farcall run -n N [--] program [args ...]    (farcall run -h says more)"
    if words in (["-h"], ["--help"]):
        print(usage)
        return 0
    print(usage, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
