"""`python -m tests.soak.run`: long runs, and what the process holds every so many steps.

python -m tests.soak.run --steps 10000 --recaptures 100               two processes
python -m tests.soak.run --steps 10000 --recaptures 100 --threads     two threads of this process
python -m tests.soak.run --steps 4500 --recaptures 0 --fresh          each step of a new length
"""

import argparse
import copy
import time
import warnings
from collections.abc import Sequence

from tabulate import tabulate

from sp.testing import run_processes, run_ranks
from tests.soak.readings import Reading, growth
from tests.soak.work import Job, soak, soak_process, tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--recaptures", type=int, default=100)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--strategy", default="striped")
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="a new length at each step")
    given = parser.parse_args()
    job = Job(given.steps, given.recaptures, given.every, given.compiled, given.fresh, given.strategy)
    start = time.monotonic()
    run = run_threads if given.threads else run_in_processes
    ranks = run(job, given.world)
    print(f"{job}, {given.world} {'threads' if given.threads else 'processes'}, {time.monotonic() - start:.0f} s")
    print(table(ranks[0]))
    for name in ("rss", "used", "blocks", "objects"):
        print(f"{name} over the second half: {', '.join(f'{growth(rank, name):+,.2f}' for rank in ranks)} a step")


def run_in_processes(job: Job, world: int) -> list[list[Reading]]:
    return run_processes(world, soak_process, job, timeout_s=86_400)


def run_threads(job: Job, world: int) -> list[list[Reading]]:
    models = [copy.deepcopy(tiny()) for _ in range(world)]
    seats = iter(models)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_ranks(world, lambda group: soak(job, next(seats), group), timeout_s=86_400)


def table(readings: Sequence[Reading]) -> str:
    names = ("step", "fds", "threads", "groups", "captures", "plans", "objects", "blocks")
    rows = [
        (f"{each.rss / 2**20:.1f}", f"{each.used / 2**20:.2f}", *(getattr(each, name) for name in names))
        for each in readings
    ]
    return tabulate(rows, ("RSS MiB", "used MiB", *names), "pipe")


if __name__ == "__main__":
    main()
