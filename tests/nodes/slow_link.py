"""How long an attention takes whose ranks sit on two hosts, with a slow link between them.

python -m tests.nodes.slow_link --rate 10mbit
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tabulate import tabulate

from tests.nodes.crossing import STRATEGIES
from tests.nodes.hosts import slow_down, torchrun, two_hosts
from tests.nodes.plans import bytes_that_cross

RANKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="10mbit", help="of the link, as tc writes it; 0 for no limit")
    parser.add_argument("--length", type=int, default=4096)
    args = parser.parse_args()
    with TemporaryDirectory(prefix="sp-slow-link-") as folder, two_hosts() as hosts:
        out = Path(folder, "found.json")
        if args.rate != "0":
            slow_down(hosts, args.rate)
        script = Path(__file__).with_name("crossing.py")
        torchrun(hosts, RANKS, script, "--length", str(args.length), "--out", out, timeout_s=600)
        found = json.loads(out.read_text())["attention"]
    rows = [
        (f"`{name}`", direction, bytes_that_cross(name, args.length, 2, RANKS, bool(way)), sent, seconds)
        for name in STRATEGIES
        for way, direction in enumerate(("forward", "backward"))
        for sent, seconds in [(found[name][0]["bytes"][way], found[name][0]["seconds"][way])]
    ]
    headers = ("", "", "bytes by the plan", "bytes counted", "seconds")
    print(tabulate(rows, headers, intfmt=",", floatfmt=".2f", tablefmt="github"))


if __name__ == "__main__":
    main()
