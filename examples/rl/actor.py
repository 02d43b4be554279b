# SPDX-License-Identifier: BSD-3-Clause
"""What an actor runs: it plays its games, all of them at once, on the event loop of its worker."""

from __future__ import annotations

import asyncio

import farcall

from game import Game
from learner import Learner, Step


async def play(
    learner: farcall.RRef[Learner], games: list[farcall.RRef[Game]], episodes: int
) -> int:
    """Plays every game `episodes` times. The games live here: their references are the games."""
    await asyncio.gather(*(_play_one(learner, game.local_value(), episodes) for game in games))
    return episodes * len(games)


async def _play_one(learner: farcall.RRef[Learner], game: Game, episodes: int) -> None:
    lessons: list[farcall.Future[None]] = []
    for _ in range(episodes):
        steps: list[Step] = []
        observation, reward, over = game.reset(), 0.0, False
        while not over:
            action = await learner.rpc_async().act(observation)
            steps.append((observation, action))
            observation, reward, over = game.step(action)
        lessons.append(learner.rpc_async().learn(steps, reward))
    await asyncio.gather(*lessons)
    await learner.rpc_async().one_less()
