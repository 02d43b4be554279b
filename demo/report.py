# SPDX-License-Identifier: BSD-3-Clause
"""What happened, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

import plan  # noqa: E402

FUNCTIONS = ("pull", "push", "evaluate")
COLOURS = {"pull": "#2a6fbb", "push": "#2f9e77", "evaluate": "#8a5fb5"}
TIMEOUT = "#d1335b"
INK = "#22303c"
FAINT = "#9aa7b3"
LOSS = "#e08a1e"


@dataclass
class Run:
    begin: float
    end: float
    final: float
    accuracies: NDArray[np.float64]  # rows of (when, accuracy)
    calls: dict[str, NDArray[Any]]  # by trainer
    losses: dict[str, NDArray[np.float64]]  # by trainer, rows of (when, loss)

    def of(self, function: str) -> NDArray[Any]:
        every = np.concatenate(list(self.calls.values()))
        return every[every["function"] == FUNCTIONS.index(function)]


def load(path: Path) -> Run:
    with np.load(path) as saved:
        names = [str(name) for name in saved["names"]]
        calls = {name: saved[f"calls_{name}"] for name in names}
        losses = {name: saved[f"losses_{name}"].reshape(-1, 2) for name in names}
        accuracies = saved["accuracies"].reshape(-1, 2)
        begin, final = float(saved["begin"]), float(saved["final"])
    # All times are of one clock, which the processes of a machine share; the picture begins at 0.
    end = begin
    for each in calls.values():
        end = max(end, float((each["start"] + each["took"]).max(initial=begin)))
        each["start"] -= begin
    for each in losses.values():
        each[:, 0] -= begin
    end = max(end, float(accuracies[:, 0].max(initial=end)))
    accuracies[:, 0] -= begin
    return Run(begin, end - begin, final, accuracies, calls, losses)


# ---------------------------------------------------------------------------------------- table


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(run: Run) -> str:
    head = ("function", "limit", "calls", "timeouts", "bytes", "p50 ms", "p99 ms")
    rows = [head]
    for function in FUNCTIONS:
        calls = run.of(function)
        if len(calls) == 0:
            continue
        median, late = np.percentile(calls["took"], [50, 99])
        size = int(calls["bytes"].sum())
        rows.append(
            (
                function,
                f"{plan.LIMITS[function]:g} s",
                f"{len(calls):,}",
                f"{int(calls['timed_out'].sum()):,}",
                f"{size / 1e6:,.0f} MB" if size else "-",
                _milliseconds(median),
                _milliseconds(late),
            )
        )
    rows.append(("", "", "", "", "", "", ""))
    rows.append(("trainer", "", "calls", "timeouts", "", "p50 ms", "p99 ms"))
    for name, calls in run.calls.items():
        mine = calls[calls["function"] != FUNCTIONS.index("evaluate")]
        median, late = np.percentile(mine["took"], [50, 99])
        rows.append(
            (
                name + (" (slow)" if name == plan.SLOW_TRAINER else ""),
                "",
                f"{len(mine):,}",
                f"{int(mine['timed_out'].sum()):,}",
                "",
                _milliseconds(median),
                _milliseconds(late),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


# -------------------------------------------------------------------------------------- picture


def _smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """A running mean, over fewer values at both ends."""
    width = max(1, min(width, len(values) // 4))
    kernel = np.ones(width)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _style() -> None:
    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.titlesize": 11.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": FAINT,
            "axes.labelcolor": INK,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.grid": True,
            "grid.color": "#e6ebef",
            "axes.axisbelow": True,
        }
    )


def _draw_loss(axes: Axes, run: Run) -> None:
    losses = np.concatenate([each for each in run.losses.values() if len(each)])
    losses = losses[losses[:, 0].argsort()]
    when = losses[:, 0]
    axes.plot(when, losses[:, 1], ".", color=LOSS, alpha=0.08, markersize=3, rasterized=True)
    axes.plot(when, _smooth(losses[:, 1], 150), color=LOSS, linewidth=2.2)
    top = float(np.percentile(losses[:, 1], 99.5))
    axes.set_ylim(0, top)
    axes.set_xlim(0, run.end)
    axes.set_ylabel("training loss", color=LOSS)
    axes.set_xlabel("seconds")
    axes.set_title("Loss over time, and the accuracy that was measured beside the training")

    right = axes.twinx()
    right.grid(False)
    violet = COLOURS["evaluate"]
    right.plot(
        run.accuracies[:, 0], run.accuracies[:, 1], "o-", color=violet, linewidth=1.4,
        markersize=5, markeredgecolor="white",
    )  # fmt: skip
    right.set_ylim(0.5, 0.95)
    right.set_ylabel("test accuracy", color=violet)
    right.annotate(
        f"{run.final:.4f}", run.accuracies[-1], textcoords="offset points", xytext=(-4, 9),
        ha="right", color=violet, fontweight="bold",
    )  # fmt: skip

    for calls in run.calls.values():
        late = calls[calls["timed_out"]]
        axes.plot(
            late["start"] + late["took"], np.full(len(late), 0.015 * top), "|", color=TIMEOUT,
            markersize=12, markeredgewidth=1.6, clip_on=False, zorder=5,
        )  # fmt: skip
    axes.plot(
        [], [], "|", color=TIMEOUT, markersize=10, markeredgewidth=1.6, label="a call timed out"
    )
    axes.legend(loc="center right", frameon=False)


def _draw_latencies(axes: Axes, run: Run) -> None:
    """One curve a function: how often a call took how long; the limit as a line, and what ran into
    it in red."""
    present = [name for name in FUNCTIONS if len(run.of(name))]
    shortest = min(float(run.of(name)["took"].min()) for name in present)
    edges = np.geomspace(max(shortest, 1e-5) * 0.7, plan.EVALUATE_LIMIT * 1.6, 130)
    middle = np.sqrt(edges[1:] * edges[:-1])
    for place, name in enumerate(reversed(present)):
        calls = run.of(name)
        good = calls["took"][~calls["timed_out"]]
        height = _smooth(np.histogram(good, edges)[0].astype(float), 5)
        height *= 0.8 / max(height.max(), 1e-9)
        axes.fill_between(middle, place, place + height, color=COLOURS[name], alpha=0.35, lw=0)
        axes.plot(middle, place + height, color=COLOURS[name], linewidth=1.5)
        # Of all calls, as in the table.
        median, late = np.percentile(calls["took"], [50, 99])
        axes.plot([median, median], [place, place + 0.8], color=COLOURS[name], lw=1, ls=":")
        limit = plan.LIMITS[name]
        room = late * 12 < limit  # between the curve and the limit
        axes.annotate(
            f"p50 {_milliseconds(median)} ms\np99 {_milliseconds(late)} ms",
            (late * 1.35 if room else float(good.min()) / 1.35, place + 0.42),
            ha="left" if room else "right", fontsize=8.5, color=COLOURS[name], va="center",
        )  # fmt: skip
        axes.plot([limit, limit], [place, place + 0.8], color=TIMEOUT, linewidth=1.2)
        late_calls = int(calls["timed_out"].sum())
        text = f"limit {limit:g} s" + (f"\n{late_calls} timed out" if late_calls else "")
        axes.annotate(
            text, (limit, place + 0.62), textcoords="offset points",
            xytext=(-5, 0) if limit > 10 else (5, 0), ha="right" if limit > 10 else "left",
            fontsize=8.5, color=TIMEOUT, va="center",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    ticks = [t for t in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0) if edges[0] <= t <= edges[-1]]
    names = {1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms", 1e-1: "100 ms", 1.0: "1 s", 10.0: "10 s"}
    axes.set_xticks(ticks)
    axes.set_xticklabels([names[t] for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, len(present))
    axes.set_yticks(range(len(present)))
    axes.set_yticklabels(list(reversed(present)), va="bottom", fontweight="bold")
    axes.tick_params(axis="y", length=0)
    axes.set_title("How long calls took")


def _draw_trainers(axes: Axes, run: Run) -> None:
    """One row a trainer: its calls as a density, its timeouts in red."""
    edges = np.linspace(0, run.end, 90)
    middle = (edges[1:] + edges[:-1]) / 2
    names = list(run.calls)
    counts = {
        name: np.histogram(calls["start"][~calls["timed_out"]], edges)[0] / np.diff(edges)
        for name, calls in run.calls.items()
    }
    highest = max(float(np.percentile(count, 98)) for count in counts.values())
    for place, name in enumerate(reversed(names)):
        slow = name == plan.SLOW_TRAINER
        height = np.minimum(_smooth(counts[name], 3) * 0.72 / highest, 0.8)
        axes.fill_between(middle, place, place + height, color=COLOURS["pull"], alpha=0.45, lw=0)
        late = run.calls[name][run.calls[name]["timed_out"]]
        for call in late:
            axes.plot(
                [call["start"], call["start"] + call["took"]], [place + 0.06] * 2, color=TIMEOUT,
                linewidth=4, solid_capstyle="butt",
            )  # fmt: skip
        rate = int(counts[name].sum() * np.diff(edges)[0]) / run.end
        text = f"{rate:,.0f} calls/s, " + (f"{len(late)} timeouts" if len(late) else "no timeout")
        axes.annotate(
            text, (0.99 * run.end, place + 0.9), ha="right", va="center", fontsize=8.5,
            color=TIMEOUT if slow or len(late) else INK,
        )  # fmt: skip
    axes.set_xlim(0, run.end)
    axes.set_ylim(0, len(names) + 0.05)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(
        [f"{name}\n(made slow)" if name == plan.SLOW_TRAINER else name for name in reversed(names)],
        va="bottom",
    )
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    axes.set_title("Calls of each trainer; red: waiting for one that timed out")


def draw(run: Run, path: Path) -> None:
    _style()
    figure = plt.figure(figsize=(13, 8.4), facecolor="white")
    grid = figure.add_gridspec(
        2, 2, height_ratios=(1, 1.05), hspace=0.42, wspace=0.24,
        left=0.075, right=0.93, top=0.865, bottom=0.075,
    )  # fmt: skip
    figure.text(
        0.075, 0.955, "One parameter server, four trainers, a timeout on every call",
        fontsize=17, fontweight="bold",
    )  # fmt: skip
    every = np.concatenate(list(run.calls.values()))
    figure.text(
        0.075, 0.922,
        f"Fashion-MNIST, {plan.STEPS:,} steps in {run.end:.1f} s: {len(every):,} calls, "
        f"{int(every['timed_out'].sum())} of them timed out",
        fontsize=11, color="#5c6b78",
    )  # fmt: skip
    _draw_loss(figure.add_subplot(grid[0, :]), run)
    _draw_latencies(figure.add_subplot(grid[1, 0]), run)
    _draw_trainers(figure.add_subplot(grid[1, 1]), run)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def show(results: Path) -> int:
    """Prints the table and the last word, writes the picture; the exit code of the demo."""
    run = load(results)
    picture = results.parent / "demo.png"
    draw(run, picture)
    timeouts = sum(int(calls["timed_out"].sum()) for calls in run.calls.values())
    print()
    print(table(run))
    print()
    print(f"picture: {picture}")
    good = True
    if timeouts == 0:
        print("no call timed out, though one trainer was made slow")
        good = False
    if run.final < plan.ACCURACY_WANTED:
        print(f"the accuracy should be at least {plan.ACCURACY_WANTED}")
        good = False
    print(f"test accuracy {run.final:.4f}", flush=True)
    return 0 if good else 1
