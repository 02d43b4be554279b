# SPDX-License-Identifier: BSD-3-Clause
"""Actor-learner reinforcement learning: one learner, three actors, and games that live at the actors.

    farcall run -n 4 examples/rl/main.py        (or: python3 examples/rl/main.py)

It shows references to objects elsewhere (the games, the learner), functions that answer later (the
learner chooses the actions of all games in one pass), and coroutines (an actor plays all its games at
once). It draws the learning curve, and fails if nothing was learned.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import farcall  # noqa: E402
import numpy as np  # noqa: E402

from actor import play  # noqa: E402
from game import Game  # noqa: E402
from learner import Learner  # noqa: E402

WORKERS = 4
GAMES = 8  # at each actor
GOOD = 0.2  # mean reward of the last games; 1 is perfect, chance gives about -0.6, and 0.8 is usual
PICTURE = Path(__file__).resolve().parents[2] / "build" / "examples" / "rl.png"


def learn(actors: list[str], episodes: int) -> Learner:
    learner = Learner(GAMES * len(actors), seed=1)
    me = farcall.RRef(learner)
    games = {
        actor: [farcall.remote(actor, Game, (100 * i + k,)) for k in range(GAMES)]
        for i, actor in enumerate(actors)
    }
    # A run has no limit; a single question about a game has.
    runs = [farcall.rpc_async(actor, play, (me, games[actor], episodes)) for actor in actors]
    print("games at work:", sum(farcall.wait_all(runs)))
    begun = [game.rpc_sync(timeout=30.0).played() for game in games[actors[0]]]
    print(f"each game of {actors[0]} was begun {begun} times")
    return learner


def draw(rewards: list[float], picture: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    window = max(1, len(rewards) // 30)
    smooth = np.convolve(rewards, np.ones(window) / window, "valid")
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(np.arange(len(smooth)) + window, smooth, color="#2a6fbb")
    axes.axhline(GOOD, color="#9aa7b3", linestyle="--", linewidth=1)
    axes.set(xlabel="games", ylabel=f"reward, mean of {window} games", ylim=(-1.05, 1.05))
    axes.set_title("Catching a ball: one learner, three actors")
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    print("learning curve:", picture)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=60, help="of each game")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        from farcall import launch

        return launch.run([sys.executable, *sys.argv], WORKERS)

    rank = int(os.environ["RANK"])
    farcall.init_rpc("learner" if rank == 0 else f"actor{rank}")
    if rank > 0:
        farcall.shutdown()  # an actor serves until all are done
        return 0
    names = [worker.name for worker in farcall.get_worker_infos() if worker.id > 0]
    learner = learn(names, args.episodes)
    farcall.shutdown()

    last = float(np.mean(learner.rewards[-len(learner.rewards) // 5 :]))
    size = float(np.mean(learner.batches))
    print(f"actions were chosen for {size:.1f} games at a time")
    first = float(np.mean(learner.rewards[:100]))
    print(f"mean reward: {first:+.2f} in the first 100 games, {last:+.2f} at the end")
    draw(learner.rewards, args.picture)
    return 0 if last >= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
