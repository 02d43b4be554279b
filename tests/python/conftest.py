# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the Python package share. The test process is worker w0; the others are real
processes. Every test has a guard of 60 s; nothing of the user's own is touched."""

import faulthandler
import os
import sys
import tempfile
from pathlib import Path

import pytest

GUARD_S = 60

_home = tempfile.TemporaryDirectory(prefix="farcall-test-")
os.environ.update(
    HOME=_home.name,
    XDG_CONFIG_HOME=_home.name,
    FARCALL_SECRET="the secret of the tests",
)
for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FARCALL_PORT"):
    os.environ.pop(name, None)
sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config):
    """A guard that needs no cooperation: stacks to the real stderr, then the end."""
    config._guard_stream = os.fdopen(os.dup(2), "w")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Over the fixtures as well, which start and end the processes."""
    faulthandler.dump_traceback_later(GUARD_S, exit=True, file=item.config._guard_stream)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def job(tmp_path, request):
    """start(workers=2, ...) makes this process w0 of a job; all is taken down afterwards."""
    import support

    jobs = []

    def start(workers=2, **options):
        jobs.append(support.Job(tmp_path / f"meet{len(jobs)}", workers, **options))
        return jobs[-1].start()

    yield start
    for one in reversed(jobs):
        one.end()
    jobs.clear()
    if not request.session.testsfailed:  # else pytest keeps what the failed test had
        support.nothing_left()


@pytest.fixture(scope="module")
def pair(tmp_path_factory, request):
    """A job of w0 (here) and w1 for all tests of a file."""
    import support

    one = support.Job(tmp_path_factory.mktemp("pair") / "meet", 2).start()
    yield one
    one.end()
    if not request.session.testsfailed:  # else pytest keeps what the failed test had
        support.nothing_left()
