"""What `sp` makes of a small Llama: its graph before and after, what every rank computes, and the report.

    python examples/inspect_graph.py --strategy zigzag --world 4

Nothing is computed and no process group is needed: this is how to look before you leap.
"""

import argparse

import torch
from tabulate import tabulate

import sp
from sp.models import Llama, LlamaConfig
from sp.show import Report, print_program

ONE_AXIS = [name for name, strategy in sp.STRATEGIES.items() if not strategy.axes]


def main() -> None:
    options = parse_options()
    model = Llama(LlamaConfig(layers=options.layers, heads=8, kv_heads=2, width=64, gqa="repeat_kv"))
    ids = torch.zeros(1, options.length, dtype=torch.long)
    reports = {
        name: sp.inspect(model, (ids,), {"labels": ids}, strategy=name, world_size=options.world) for name in ONE_AXIS
    }
    chosen = reports[options.strategy]
    show("The graph as captured", print_program(chosen.captured))
    show(f"The graph that every rank runs: {options.strategy}", chosen.graph_table())
    for name, report in reports.items():
        show(f"What each rank computes: {name}", report.plan_grid())
    show("Share of the attention work", shares(reports))
    show("The report", str(chosen))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--strategy", default="striped", choices=ONE_AXIS)
    parser.add_argument("--world", type=int, default=4, help="number of ranks (default: 4)")
    parser.add_argument("--length", type=int, default=64, help="number of tokens (default: 64)")
    parser.add_argument("--layers", type=int, default=4, help="blocks of the model (default: 4)")
    return parser.parse_args()


def shares(reports: dict[str, Report]) -> str:
    """One row per rank, one column per strategy; the busiest rank decides how long everybody takes."""
    areas = {name: report.as_dict()["attentions"][0]["area"] for name, report in reports.items()}
    ranks = zip(*areas.values(), strict=True)
    total = sum(next(iter(areas.values())))
    rows = [[f"rank {rank}", *(f"{100 * area / total:.1f} %" for area in row)] for rank, row in enumerate(ranks)]
    speed = ["mean / most", *(f"{total / len(area) / max(area):.2f}" for area in areas.values())]
    return tabulate([*rows, speed], ["", *areas], disable_numparse=True, stralign="right")


def show(title: str, text: str) -> None:
    print(f"{title}\n{'=' * len(title)}\n\n{text}\n\n")


if __name__ == "__main__":
    main()
