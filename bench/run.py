# SPDX-License-Identifier: BSD-3-Clause
"""Measures farcall beside its floors (what the kernel or bare Python needs for the same) and beside
torch.distributed.rpc where that is installed.

    bench/run.py [--quick] [--rounds N] [--no-torch]

A machine's speed drifts, so everything is measured in rounds, the floor of a row next to the row,
and a ratio is the median of the rounds' ratios. Prints a table and writes build/bench/results.json:
a list of {"row", "system", "median", "p99", "unit", "n"}."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEP_LIMIT_S = 300
NO_TORCH = 3

Figure = dict[str, Any]  # median, p99, min (some), unit, n
Round = dict[tuple[str, str], Figure]  # by system and row


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    floor: str | None = None  # the floor's own key, or one of farcall's rows to compare with
    than: str = "floor"  # what that is, in words
    at_most: float | None = None  # times the floor
    at_least: float | None = None  # times the floor, for rates
    torch: float | None = None  # this many times better than torch
    limit: float | None = None  # in the row's unit, whatever else is measured
    of_p99: bool = False  # the limit is for the p99, and nothing may be early
    remark: str = ""  # a target that cannot be judged here


@dataclass(frozen=True)
class Group:
    title: str
    rows: list[Row]


GROUPS = [
    Group(
        "C",
        [
            Row("c_sync_unix", "sync call, Unix socket", "unix_64", at_most=1.2),
            Row("c_sync_unix_never", "  never-blocking handler", "unix_64", at_most=1.1),
            Row("c_sync_tcp", "sync call, TCP", "tcp_64", at_most=1.2),
            Row("c_sync_tcp_never", "  never-blocking handler", "tcp_64", at_most=1.1),
            Row("c_self", "to oneself", "handoff", at_most=1.3),
            Row("c_self_never", "  never-blocking handler", limit=2.0),
            Row("c_async_64", "64 in flight", remark="1.2 x ZeroMQ, 25 x gRPC"),
            Row("c_threads_8", "8 threads calling", "c_async_64", "that", at_least=1.0),
            Row("c_1MiB", "1 MiB there", "unix_1MiB", at_most=1.3),
            Row("c_limit", "a timeout on each call", "c_no_limit", "no timeout", at_most=1.05),
            Row("c_limit_armed", "  10,000 more armed", "c_no_limit", "no timeout", at_most=1.05),
            Row("c_expiry", "expiry, how late", limit=1000.0, of_p99=True),
            Row("c_expiry_armed", "  of 10,000 in flight", limit=5000.0, of_p99=True),
            Row("c_killed", "killed callee, call fails", "death", at_most=1.2),
            Row("c_init_2", "init of 2 workers", limit=100.0),
            Row("c_leave_2", "  graceful shutdown", limit=100.0),
            Row("c_init_16", "init of 16 workers", limit=300.0),
            Row("c_leave_16", "  graceful shutdown", limit=300.0),
        ],
    ),
    Group(
        "Python",
        [
            Row("py_sync", "sync call", "py_floor_sync", at_most=1.2, torch=18),
            Row("py_self", "to oneself", "py_floor_self", at_most=1.5),
            Row("py_async_64", "64 in flight", torch=50),
            Row("py_threads_8", "8 threads calling", torch=15),
            Row("py_4KiB", "array of 4 KiB there", "unix_4KiB", at_most=1.3, torch=5),
            Row("py_1MiB", "array of 1 MiB there", "unix_1MiB", at_most=1.3, torch=5),
            Row("py_64MiB", "array of 64 MiB there", "unix_64MiB", at_most=1.3, torch=20),
            Row("py_memory", "import + init, over bare Python", limit=20.0),
            Row("py_idle_cpu", "idle, of a processor", limit=0.1),
            Row("py_idle_threads", "idle, threads", limit=4),
        ],
    ),
]
ROWS = [row for group in GROUPS for row in group.rows]


# -------------------------------------------------------------------------------------- running


@dataclass
class Bench:
    build: Path
    scale: float
    torch: bool
    failures: list[str] = field(default_factory=list)
    found: Round = field(default_factory=dict)

    def round(self) -> Round:
        """Everything once, each floor next to what is compared with it."""
        self.found = {}
        self._floor("unix_64", "sockets", "unix", 64, self._times(3000))
        self._floor("unix_1MiB", "sockets", "unix", 1 << 20, self._times(200))
        self._c("unix")
        self._floor("tcp_64", "sockets", "tcp", 64, self._times(3000))
        self._c("tcp")
        self._floor("handoff", "handoff", self._times(4000))
        self._c("self")
        self._floor("death", "death", self._times(10))
        self._c("killed")
        self._c("expiry")
        self._c("init")
        self._python_floor("sync")
        self._python_floor("self")
        self._python("farcall", "bench_python.py", self.scale)
        self._floor("unix_4KiB", "sockets", "unix", 4 << 10, self._times(2000))
        self._floor("unix_64MiB", "sockets", "unix", 64 << 20, max(1, self._times(8)))
        if self.torch:
            # Its calls are twenty times slower, so fewer do.
            self._python("torch", "torch_peer.py", self.scale * 0.25)
        return self.found

    def _times(self, count: int) -> int:
        return max(1, int(count * self.scale))

    def _floor(self, key: str, program: str, *words: object) -> None:
        self._step("floor", [self.build / "bench" / "floors" / program, *words], key)

    def _c(self, group: str) -> None:
        self._step("farcall", [self.build / "bench" / "bench_c", group, self.scale])

    def _python_floor(self, kind: str) -> None:
        command = [sys.executable, HERE / "python_floor.py", kind, self._times(3000)]
        self._step("floor", command, f"py_floor_{kind}")

    def _python(self, system: str, script: str, scale: float) -> None:
        self._step(system, [sys.executable, HERE / script, scale])

    def _step(self, system: str, command: list[object], key: str | None = None) -> None:
        """Runs one program and takes its figures; ``key`` names the only one of a floor."""
        words = [str(word) for word in command]
        env = dict(os.environ, PYTHONPATH=str(self.build / "python"), OPENBLAS_NUM_THREADS="1")
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=STEP_LIMIT_S, env=env
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._failed(words, str(error))
            return
        if system == "torch" and done.returncode == NO_TORCH:
            self.torch = False
            return
        for line in done.stdout.splitlines():
            figure = json.loads(line)
            self.found[system, key or figure["row"]] = figure
        if done.returncode:
            self._failed(words, f"exit code {done.returncode}\n{done.stderr.strip()[-2000:]}")

    def _failed(self, words: list[str], why: str) -> None:
        name = " ".join([Path(words[0]).name, *words[1:]])
        if name not in self.failures:
            self.failures.append(name)
            print(f"failed: {name}: {why}", file=sys.stderr)


# ------------------------------------------------------------------------------------ figures


def floor_of(row: Row, found: Round) -> Figure | None:
    if row.floor is None:
        return None
    return found.get(("floor", row.floor)) or found.get(("farcall", row.floor))


def of_system(row: Row, system: str, found: Round) -> Figure | None:
    return floor_of(row, found) if system == "floor" else found.get((system, row.key))


def together(row: Row, system: str, rounds: list[Round]) -> Figure | None:
    """One figure of all rounds: the median of the medians, and of the p99s."""
    figures = [f for f in (of_system(row, system, found) for found in rounds) if f is not None]
    if not figures:
        return None
    return {
        "row": row.key,
        "system": system,
        "median": statistics.median(f["median"] for f in figures),
        "p99": statistics.median(f["p99"] for f in figures),
        "unit": figures[0]["unit"],
        "n": sum(f["n"] for f in figures),
    }


def ratio(row: Row, over: str, under: str, rounds: list[Round]) -> float | None:
    pairs = [(of_system(row, over, found), of_system(row, under, found)) for found in rounds]
    ratios = [a["median"] / b["median"] for a, b in pairs if a and b and b["median"] > 0]
    return statistics.median(ratios) if ratios else None


def judge(row: Row, rounds: list[Round]) -> tuple[str, str]:
    """The row's target in words, and whether it is met: yes, MISSED, or - if that is not known."""
    words: list[str] = [row.remark] if row.remark else []
    verdicts: list[bool | None] = [None] if row.remark else []
    floor, ours = ratio(row, "farcall", "floor", rounds), together(row, "farcall", rounds)
    if row.at_most is not None:
        words.append(f"<= {row.at_most:g} x {row.than}")
        verdicts.append(None if floor is None else floor <= row.at_most)
    if row.at_least is not None:
        words.append(f">= {row.at_least:g} x {row.than}")
        verdicts.append(None if floor is None else floor >= row.at_least)
    if row.torch is not None:
        faster = faster_than_torch(row, rounds)
        words.append(f">= {row.torch:g} x torch")
        verdicts.append(None if faster is None else faster >= row.torch)
    if row.limit is not None and ours is not None:
        words.append(
            f"p99 <= {amount(row.limit, ours['unit'])}, never early"
            if row.of_p99
            else f"<= {amount(row.limit, ours['unit'])}"
        )
        verdicts.append(ours["p99" if row.of_p99 else "median"] <= row.limit)
        if row.of_p99:
            early = min(found["farcall", row.key]["min"] for found in rounds
                        if ("farcall", row.key) in found)  # fmt: skip
            verdicts.append(early >= 0)
    if ours is None or False in verdicts:
        return ", ".join(words), "MISSED"
    return ", ".join(words), "-" if None in verdicts else "yes"


def faster_than_torch(row: Row, rounds: list[Round]) -> float | None:
    ours = together(row, "farcall", rounds)
    if ours is not None and ours["unit"] == "calls/s":
        return ratio(row, "farcall", "torch", rounds)
    return ratio(row, "torch", "farcall", rounds)


# --------------------------------------------------------------------------------------- table


def amount(value: float, unit: str) -> str:
    if unit == "us" and value >= 1000:
        value, unit = value / 1000, "ms"
    if unit == "calls/s":
        return f"{value:,.0f}/s"
    if unit == "threads":
        return f"{value:.0f}"
    digits = 0 if value >= 100 else 1 if value >= 10 or value == 0 else 2
    return f"{value:.{digits}f} {unit}"


def shown(figure: Figure | None) -> str:
    return amount(figure["median"], figure["unit"]) if figure else "-"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def table(rounds: list[Round]) -> str:
    head = ["", "farcall", "p99", "floor", "ratio", "torch", "faster", "target", "met"]
    lines: list[list[str]] = []
    for group in GROUPS:
        lines.append([group.title, *head[1:]])
        for row in group.rows:
            ours = together(row, "farcall", rounds)
            target, met = judge(row, rounds)
            lines.append(
                [
                    "  " + row.title,
                    shown(ours),
                    amount(ours["p99"], ours["unit"]) if ours and ours["n"] > 20 else "-",
                    shown(together(row, "floor", rounds)),
                    times(ratio(row, "farcall", "floor", rounds)),
                    shown(together(row, "torch", rounds)),
                    times(faster_than_torch(row, rounds)),
                    target,
                    met,
                ]
            )
        lines.append([""] * len(head))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    left = (0, len(head) - 2, len(head) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ).rstrip()


def results(rounds: list[Round]) -> list[Figure]:
    every = (
        together(row, system, rounds) for row in ROWS for system in ("farcall", "floor", "torch")
    )
    return [figure for figure in every if figure is not None]


def check_form(path: Path) -> list[str]:
    """What is wrong with the written results; no figure is judged."""
    wrong = []
    number = (int, float)
    kinds: dict[str, Any] = {
        "row": str, "system": str, "median": number, "p99": number, "unit": str
    }  # fmt: skip
    written = json.loads(path.read_text())
    for figure in written:
        if set(figure) != {*kinds, "n"} or not isinstance(figure["n"], int) or figure["n"] < 1:
            wrong.append(f"not of the form: {figure}")
        elif not all(isinstance(figure[name], kind) for name, kind in kinds.items()):
            wrong.append(f"a wrong type: {figure}")
    have = {(figure["system"], figure["row"]) for figure in written}
    want = {("farcall", row.key) for row in ROWS} | {("floor", r.key) for r in ROWS if r.floor}
    return wrong + [f"missing: {row} of {system}" for system, row in sorted(want - have)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--smoke", action="store_true", help="only see that all rows come out")
    parser.add_argument("--rounds", type=int, help="how many (default 7; quick 2)")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build" / "release")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "build" / "bench" / "results.json"
    )
    args = parser.parse_args()

    count = args.rounds or (1 if args.smoke else 2 if args.quick else 7)
    scale = 0.02 if args.smoke else 0.15 if args.quick else 1.0
    bench = Bench(args.build.resolve(), scale, torch=not (args.smoke or args.no_torch))
    rounds = []
    begin = time.monotonic()
    for number in range(count):
        rounds.append(bench.round())
        print(
            f"round {number + 1} of {count}, {time.monotonic() - begin:.0f} s", file=sys.stderr
        )
    if not args.no_torch and not args.smoke and not bench.torch:
        print("torch.distributed.rpc is not installed (make bench-peers installs it)")
    print(table(rounds))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results(rounds), indent=1) + "\n")
    print(f"\nwritten: {args.out}")
    wrong = check_form(args.out) if args.smoke else []
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong or bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
