# SPDX-License-Identifier: BSD-3-Clause
"""farcall run: real processes. Waits are for events, under one guard; no duration is asserted."""

import contextlib
import fcntl
import importlib.util
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

GUARD_S = 60
LAUNCH = Path(__file__).parents[2] / "python" / "farcall" / "launch.py"


def command(*words):
    return [sys.executable, str(LAUNCH), "run", *map(str, words)]


def run(*words, **options):
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=GUARD_S, **options
    )


@pytest.fixture
def script(tmp_path):
    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def start():
    """Starts a launcher that the test talks to while it runs."""
    with contextlib.ExitStack() as stack:

        def begin(*words):
            process = subprocess.Popen(
                command(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
            stack.callback(process.communicate, timeout=GUARD_S)
            stack.callback(process.kill)
            return process

        yield begin


def read_lines(process, count):
    lines = []
    while len(lines) < count:
        ready, _, _ = select.select([process.stdout], [], [], GUARD_S)
        assert ready, f"only {lines}"
        lines.append(process.stdout.readline().decode())  # unbuffered, so select knows all
    return lines


def wait_gone(pids):
    """Waits until none of the processes is left; their descriptors were opened while they lived."""
    for fd in pids:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(GUARD_S * 1000), "a process was left behind"
        os.close(fd)


def test_every_worker_finds_its_place_in_the_environment(script):
    program = script(
        "import os\n"
        "e = os.environ\n"
        "print(e['RANK'], e['LOCAL_RANK'], e['WORLD_SIZE'], e['MASTER_ADDR'],\n"
        "      int(e['MASTER_PORT']) > 0, e['FARCALL_INIT'].startswith('file:///'),\n"
        "      'FARCALL_SECRET' in e)\n"
    )
    result = run("-n", 3, program, env={**os.environ, "FARCALL_SECRET": "of another job"})
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}] {rank} {rank} 3 127.0.0.1 True True False" for rank in range(3)
    ]


def test_the_secret_is_fresh_private_and_on_no_command_line(script):
    program = script(
        "import os, stat\n"
        "path = os.environ['FARCALL_SECRET_FILE']\n"
        "secret = open(path).read().strip()\n"
        "modes = [stat.S_IMODE(os.stat(p).st_mode) for p in (path, os.path.dirname(path))]\n"
        "seen = any(secret in open(f'/proc/{p}/cmdline').read() + str(dict(os.environ))\n"
        "           for p in (os.getpid(), os.getppid()))\n"
        "print(secret, *map(oct, modes), seen)\n"
    )
    jobs = [run("-n", 2, program) for _ in range(2)]
    lines = [{line.split("] ")[1] for line in job.stdout.splitlines()} for job in jobs]
    assert [len(job) for job in lines] == [1, 1], "one secret for all of a job"
    assert lines[0] != lines[1], "another secret for another job"
    secret, file_mode, folder_mode, seen = lines[0].pop().split()
    assert len(secret) >= 32
    assert (file_mode, folder_mode, seen) == (oct(0o600), oct(stat.S_IRWXU), "False")


def test_nothing_is_left_in_the_temporary_folder(script, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    program = script("import os; print(os.listdir(os.environ['TMPDIR']))")
    result = run("-n", 1, program, env={**os.environ, "TMPDIR": str(folder)})
    assert "farcall-" in result.stdout
    assert list(folder.iterdir()) == []


def test_streams_stay_apart_and_each_line_has_its_rank(script):
    program = script(
        "import sys\n"
        "print('one\\n\\nthree')\n"
        "print('wrong', file=sys.stderr)\n"
        "sys.stdout.write('no newline')\n"
    )
    result = run("-n", 2, program)
    for rank in range(2):
        mine = [line for line in result.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] {text}" for text in ("one", "", "three", "no newline")]
    assert sorted(result.stderr.splitlines()) == ["[0] wrong", "[1] wrong"]


def test_lines_are_not_mixed(script):
    program = script(
        "import os\n"
        "for _ in range(2000): os.write(1, (os.environ['RANK'] * 300 + '\\n').encode())\n"
    )
    result = run("-n", 3, program)
    lines = result.stdout.splitlines()
    assert len(lines) == 6000
    assert set(lines) == {f"[{rank}] " + str(rank) * 300 for rank in range(3)}


def test_a_progress_bar_is_drawn_in_place_on_a_terminal(script):
    program = script(
        "import os, sys\n"
        "print('width', os.environ['COLUMNS'], file=sys.stderr)\n"
        "for i in range(3): sys.stderr.write(f'\\rbar {i}'); sys.stderr.flush()\n"
        "sys.stderr.write('\\nplain\\n')\n"
    )
    shown = b""
    master, slave = os.openpty()
    with open(master, "rb", buffering=0) as terminal:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
        process = subprocess.Popen(command("-n", 1, program), stderr=slave)
        os.close(slave)
        with contextlib.suppress(OSError):  # what a terminal gives at its end
            while data := terminal.read(4096):
                shown += data
    assert process.wait(GUARD_S) == 0
    lines = [line.rpartition(b"\x1b[K")[2].rstrip() for line in shown.split(b"\n")]
    assert lines == [b"[0] width 60", b"[0] bar 2", b"[0] plain", b""]


def test_a_line_comes_before_the_program_ends(script, start):
    process = start("-n", 1, script("import sys; print('here'); sys.stdin.read()"))
    assert read_lines(process, 1) == ["[0] here\n"]
    process.kill()


def test_bytes_that_are_no_text_pass(script):
    program = script("import os; os.write(1, b'\\xff\\x00\\n')")
    result = subprocess.run(command("-n", 1, program), capture_output=True, timeout=GUARD_S)
    assert result.stdout == b"[0] \xff\x00\n"


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("raise ValueError('no')", 1, "exited with code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
    ],
)
def test_one_failure_ends_all(script, how, code, text):
    program = script(
        "import os, resource, signal, sys\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"if os.environ['RANK'] == '1': {how}\n"
        "signal.pause()\n"
    )
    # A sanitizer would answer the signal itself.
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")
    result = run("-n", 3, program, env=env)
    assert result.returncode == code
    said = [line for line in result.stderr.splitlines() if line.startswith("farcall run:")]
    assert len(said) == 1
    assert said[0].startswith("farcall run: rank 1 (pid ")
    assert said[0].endswith(f") {text}; ending the other 2")


def test_who_does_not_hear_is_killed(script):
    program = script(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '0': sys.exit(5)\n"
        "while True: signal.pause()\n"
    )
    result = run("-n", 2, "--grace", 0.1, program)
    assert result.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(script, start, number):
    program = script(
        "import signal, sys\n"
        "def heard(number, frame):\n"
        "    print('heard', number)\n"
        "    sys.exit(0)\n"
        f"signal.signal({int(number)}, heard)\n"
        "print('ready')\n"
        "while True: signal.pause()\n"
    )
    process = start("-n", 2, "--grace", GUARD_S, program)
    assert sorted(read_lines(process, 2)) == ["[0] ready\n", "[1] ready\n"]
    process.send_signal(number)
    assert sorted(read_lines(process, 2)) == [f"[{r}] heard {int(number)}\n" for r in range(2)]
    assert process.wait(GUARD_S) == 0


def test_an_interrupt_nobody_catches_is_the_result(script, start):
    program = script("import signal\nprint('ready')\nsignal.pause()\n")
    process = start("-n", 2, program)
    read_lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(GUARD_S) == 128 + signal.SIGINT


# A worker that has started a process of its own, both deaf to polite signals.
FAMILY = """\
import os, signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child: print(os.getpid(), child, os.environ["FARCALL_SECRET_FILE"])
while True: signal.pause()
"""


def test_nobody_outlives_a_killed_launcher(script, start):
    process = start("-n", 3, script(FAMILY))
    words = [line.split() for line in read_lines(process, 3)]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [word for line in words for word in line[1:3]]
    assert len(set(children) - set(workers)) == 1, "the launcher's children: workers and a keeper"
    assert os.path.exists(words[0][3])
    fds = [os.pidfd_open(int(pid)) for pid in {*workers, *children}]
    process.kill()
    wait_gone(fds)
    assert not os.path.exists(os.path.dirname(words[0][3]))


def test_what_a_worker_started_ends_with_it(script, start):
    program = script(
        "import os, signal, sys\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    while True: signal.pause()\n"
        "print(child)\n"
        "sys.stdin.readline()\n"
    )
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            command("-n", 1, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        stack.callback(process.kill)
        fd = os.pidfd_open(int(read_lines(process, 1)[0].split()[1]))
        process.communicate(b"go\n", timeout=GUARD_S)
        assert process.returncode == 0
        wait_gone([fd])


def test_only_rank_0_reads_standard_input(script):
    program = script("import sys; print(repr(sys.stdin.read()))")
    result = run("-n", 2, program, input="words")
    assert sorted(result.stdout.splitlines()) == ["[0] 'words'", "[1] ''"]


def test_a_reader_that_leaves_ends_the_job(script, start):
    process = start("-n", 2, script("while True: print('more')\n"))
    read_lines(process, 1)
    process.stdout.close()
    process.stdout = None
    assert process.wait(GUARD_S) == 128 + signal.SIGPIPE


def test_a_plain_program_and_its_arguments():
    result = run("-n", 2, "--", "/bin/sh", "-c", 'echo "$RANK of $WORLD_SIZE: $0 $*"', "-n", "x y")
    assert sorted(result.stdout.splitlines()) == ["[0] 0 of 2: -n x y", "[1] 1 of 2: -n x y"]


def test_a_module(script, tmp_path):
    script("import sys; print(sys.argv[1:], __name__)", "some_module.py")
    result = run("-n", 1, "-m", "some_module", "-n", "7", cwd=tmp_path)
    assert result.stdout == "[0] ['-n', '7'] __main__\n", result.stderr


def test_a_program_that_is_not_there(tmp_path):
    result = run("-n", 2, "no-such-program-of-farcall")
    assert result.returncode == 127
    assert result.stderr == (
        "farcall run: cannot run no-such-program-of-farcall: No such file or directory\n"
    )
    not_executable = tmp_path / "data"
    not_executable.write_text("")
    assert run("-n", 1, not_executable).returncode == 126


@pytest.mark.parametrize(
    "words", [["-n", "0", "true"], ["-n", "x", "true"], ["-n", "2"], ["true"], ["-n", "2", "-m"]]
)
def test_wrong_usage(words):
    result = run(*words)
    assert result.returncode == 2
    assert "usage: farcall run" in result.stderr


def test_help_and_unknown_commands():
    launcher = [sys.executable, str(LAUNCH)]
    for words, code in (["--help"], 0), (["run", "--help"], 0), ([], 2), (["walk"], 2):
        result = subprocess.run(launcher + words, capture_output=True, text=True, timeout=GUARD_S)
        assert result.returncode == code
        assert "farcall run -n N" in result.stdout + result.stderr


@pytest.mark.skipif(importlib.util.find_spec("farcall") is None, reason="package not built")
def test_as_a_module_of_the_package():
    result = subprocess.run(
        [sys.executable, "-m", "farcall", "run", "-n", "2", "--", "/bin/sh", "-c", "echo $RANK"],
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert sorted(result.stdout.splitlines()) == ["[0] 0", "[1] 1"], result.stderr
