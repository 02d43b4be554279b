# SPDX-License-Identifier: BSD-3-Clause
"""The demo: a classifier for Fashion-MNIST, trained by one parameter server and four trainers that
talk by farcall alone. One trainer is made slow on purpose; see what its timeouts do to the others.

    python3 demo/main.py        (or: make demo)

It prints a table, writes the picture build/demo/demo.png, and ends with the accuracy on the test
set; it fails if that is too low, or if no call timed out.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Five processes share the machine: each computes with one thread. Before numpy is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import data  # noqa: E402
import plan  # noqa: E402

FOLDER = Path(__file__).resolve().parent.parent / "build" / "demo"


def work(results: Path) -> None:
    """One process of the job; its rank says which part it plays."""
    rank = int(os.environ["RANK"])
    try:
        if rank == 0:
            import server

            server.serve(results)
        else:
            import trainer

            trainer.Trainer(rank).run()
    except data.NoData as error:
        sys.exit(str(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=FOLDER / "results.npz")
    parser.add_argument("--work", action="store_true", help="be one process of the job")
    args = parser.parse_args()
    if args.work:
        work(args.results)
        return 0

    from farcall import launch

    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--work", "--results", str(args.results)]
    code = launch.run(command, 1 + plan.TRAINERS)
    if code:
        return code

    import report

    return report.show(args.results)


if __name__ == "__main__":
    sys.exit(main())
