# SPDX-License-Identifier: BSD-3-Clause
"""What server, trainers and report agree on."""

from __future__ import annotations

SERVER = "server"
TRAINERS = 4
SLOW_TRAINER = f"trainer-{TRAINERS}"

STEPS = 6000  # gradients that the server takes in all
BATCH = 32
LEARNING_RATE = 0.01  # at the start; it falls to nothing on a straight line
MOMENTUM = 0.8

# Seconds. Every call says its own limit: short where a trainer would rather go on without an
# answer, long where the work itself is long.
PULL_LIMIT = 0.5
PUSH_LIMIT = 0.5
EVALUATE_LIMIT = 30.0
REPORT_LIMIT = 30.0
LIMITS = {"pull": PULL_LIMIT, "push": PUSH_LIMIT, "evaluate": EVALUATE_LIMIT}

# How the slow trainer is made slow: the server holds back some of its calls for longer than their
# limit, as an overloaded link would.
HELD_BACK_S = 0.8
HELD_BACK_SHARE = 0.02

ACCURACY_WANTED = 0.85
