"""Two hosts, one rank on each, and the link between them is cut in the third call: what the rank sees, and when.

torchrun --nnodes 2 --nproc-per-node 1 … tests/faults/cut.py --out folder
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from sp.errors import RankLostError
from tests.faults.bare import LENGTH, Bare

TIMEOUT_S = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder that both hosts see")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    model, ids = Bare("ring", init_device_mesh("cpu", (2,))), torch.zeros(2, LENGTH, dtype=torch.int64)
    for _ in range(2):
        model(ids, labels=ids).loss.backward()
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), group)
    (args.out / f"ready-{rank}").touch()
    while not (args.out / "cut").exists():
        time.sleep(0.05)
    begin, found = time.monotonic(), {}
    try:
        model(ids, labels=ids).loss.backward()
    except RankLostError as error:
        found = {"text": str(error), "ranks": error.ranks}
    (args.out / f"found-{rank}").write_text(json.dumps({**found, "seconds": time.monotonic() - begin}))
    while not all((args.out / f"found-{each}").exists() for each in range(2)):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
