"""Documents of uneven length, packed into one long sequence that is striped over processes: as if each ran alone.

    python examples/packed_documents.py --world 2

The documents are modules of Python's standard library, cut at no multiple of anything.  `position_ids` restart with
each document, which is how transformers is told that no token may look into another one.  Held against the documents
one by one, unpacked, on a single device; then the same documents as a padded batch, padded right and padded left.
Ends with exit code 1 when a loss or a gradient strays further than rounding explains.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from arguments import positive, with_world
from tabulate import tabulate
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import sp
from sp.testing import run_processes

# float32 rounds by 6e-8, and sums over heads, tokens and ranks run in another order.
BOUND = 1e-5
IGNORED = -100


class Apart(NamedTuple):
    """How far one way to run the documents is from running them one by one."""

    way: str
    tokens: int
    loss: float
    gradient: float  # of the parameter where it is largest
    scores: str  # what decides who sees whom, as the report says it


def documents(count: int, longest: int) -> list[Tensor]:
    """The first modules of the standard library, as bytes; from each some, so that no two are of one length."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lengths = torch.randint(longest // 3, longest + 1, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [file.read_bytes() for file in files if file.stat().st_size >= longest][:count]
    return [torch.tensor(list(text[:length])) for text, length in zip(texts, lengths, strict=True)]


def labels_of(document: Tensor) -> Tensor:
    """The first token of a document has nothing before it to be told from."""
    return torch.cat([torch.tensor([IGNORED]), document[1:]])


def packed(texts: Sequence[Tensor]) -> dict[str, Tensor]:
    """All documents one after another, in a batch of one."""
    return {
        "input_ids": torch.cat(list(texts))[None],
        "labels": torch.cat([labels_of(text) for text in texts])[None],
        "position_ids": torch.cat([torch.arange(len(text)) for text in texts])[None],
    }


def padded(texts: Sequence[Tensor], left: bool) -> dict[str, Tensor]:
    """A row for each document, all as long as the longest."""
    longest = max(map(len, texts))

    def rows(made: Callable[[Tensor], Tensor], fill: int) -> Tensor:
        sides = [(longest - len(text), 0) if left else (0, longest - len(text)) for text in texts]
        pairs = zip(texts, sides, strict=True)
        return torch.stack([nn.functional.pad(made(text), side, value=fill) for text, side in pairs])

    return {
        "input_ids": rows(lambda text: text, 0),
        "labels": rows(labels_of, IGNORED),
        "attention_mask": rows(torch.ones_like, 0),
        "position_ids": rows(lambda text: torch.arange(len(text)), 0),
    }


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1 << 20,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def one_by_one(model: nn.Module, texts: Sequence[Tensor]) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over all tokens of all documents, and its gradients, with nothing packed or padded."""
    total, loss = sum(len(text) - 1 for text in texts), 0.0
    for text in texts:
        share = (len(text) - 1) / total * model(text[None], labels=text[None]).loss
        share.backward()
        loss += share.item()
    found = gradients(model)
    model.zero_grad()
    return loss, found


@torch.no_grad()
def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value.  Not a number is infinitely far from everything."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).nan_to_num(torch.inf).item()


def compare(strategy: str, count: int, longest: int, compiled: bool) -> list[Apart]:
    """On every rank: the documents one by one with the model alone, then together with the model spread over ranks."""
    transformers.logging.set_verbosity_error()
    model, texts = make_model(), documents(count, longest)
    loss, expected = one_by_one(model, texts)
    ways: dict[str, dict[str, Any]] = {
        "packed": packed(texts),
        "padded right": padded(texts, left=False),
        "padded left": padded(texts, left=True),
    }
    found: list[Apart] = []
    for way, inputs in ways.items():
        pmodel = sp.parallelize(model, strategy=strategy, compile=compiled)
        out = pmodel(**inputs)
        out.loss.backward()
        worst = max(relative(gradient, expected[name]) for name, gradient in gradients(pmodel).items())
        scores = " & ".join(pmodel.report().as_dict()["attentions"][0]["words"])
        found.append(Apart(way, inputs["input_ids"].numel(), abs(out.loss.item() / loss - 1), worst, scores))
        model.zero_grad()
    return found


def main() -> int:
    parser = with_world(__doc__)
    parser.add_argument("--documents", type=positive, default=7)
    parser.add_argument("--longest", type=int, default=901, help="tokens of the longest document, at most")
    parser.add_argument("--compile", action="store_true", help="run the rewritten graph under torch.compile")
    args = parser.parse_args()

    ranks = run_processes(args.world, compare, args.strategy, args.documents, args.longest, args.compile, timeout_s=900)
    lengths = sorted(len(text) for text in documents(args.documents, args.longest))
    print(f"{args.documents} documents of {lengths[0]} to {lengths[-1]} tokens, {sum(lengths)} in all,")
    print(f"{args.strategy} over {args.world} ranks against one by one on a single device\n")
    rows = [max(ways, key=lambda way: way.gradient) for ways in zip(*ranks, strict=True)]
    headers = ["", "tokens", "Δ loss", "Δ gradients", "scores"]
    print(tabulate(rows, headers, floatfmt=("", "", ".1e", ".1e", ""), tablefmt="simple"))
    equal = all(max(way.loss, way.gradient) <= BOUND for ways in ranks for way in ways)
    print(f"\n{'equal' if equal else 'NOT equal'} within {BOUND:.0e} on every rank")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
