"""Runs benchmarks, prints their tables and writes them down.

    python -m benchmarks                        # all of them but the last five of `NAMES`, an hour on 2 cores
    python -m benchmarks attention step         # these
    python -m benchmarks step --length 8192     # one, with options of its own: `python -m benchmarks step --help`
    python -m benchmarks --tiny                 # sizes that show only that everything works

Every table shows a bound beside each figure: what perfect kernels and free communication would reach.  Figures are
medians of repetitions, with the least and the most; ratios are taken within a repetition.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from benchmarks import machine
from benchmarks.result import save
from benchmarks.suite import NAMES, USUAL, find, read_options

OUT = Path(__file__).parent / "out"


def main(arguments: Sequence[str]) -> None:
    # Not by argparse: with one name, `--help` and what else follows belong to that benchmark.
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    ours, theirs = _parser(not names).parse_known_args(arguments[len(names) :])
    if unknown := [name for name in names if name not in NAMES]:
        sys.exit(f"there is no benchmark {unknown[0]!r}, only: {', '.join(NAMES)}")
    if theirs and len(names) != 1:
        sys.exit(f"{' '.join(theirs)}: options of a benchmark's own follow one name, of: {', '.join(NAMES)}")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch's profiler says on stderr that it starts and stops
    load = machine.load()
    if load > machine.BUSY:
        print(f"this machine is busy (load {load}): what waits for its slowest rank suffers more than the rest\n")
    for name in names or USUAL:
        benchmark = find(name)
        options = read_options(name, benchmark, theirs, ours.tiny)
        print(f"{name}: {benchmark.about}\n", flush=True)
        result = benchmark.run(options)
        print(f"{result}\n")
        written = [path.name for path in save(name, result, options, ours.out)]
        print(f"written to {ours.out}: {', '.join(written)}\n", flush=True)


def _parser(help_too: bool) -> argparse.ArgumentParser:
    usage = "python -m benchmarks [name ...] [--tiny] [--out FOLDER] [options of one benchmark]"
    about = f"{__doc__}\nnames: {', '.join(NAMES)}"
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(usage=usage, description=about, formatter_class=form, add_help=help_too)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for json and pictures")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
