# SPDX-License-Identifier: BSD-3-Clause
"""Who is in a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class WorkerInfo:
    """One worker of the job: its name, unique there, and its id."""

    name: str
    id: int
