"""Fine-tune a model of transformers with peft's LoRA on long packs of documents, the sequence spread over processes.

    python examples/finetune_lora.py --world 2

The documents are modules of Python's standard library, byte by byte; transformers' own collator packs them, and no
token looks into another document.  The same fine-tuning runs over the ranks and in one process.  Then rank 0 has saved
the adapter by peft's `save_pretrained`, and a plain model that loads it is held against the ranks on a pack that none
has seen: loss, logits and the gradient of every adapter.  Ends with exit code 1 when they differ by more than rounding.

The base is a Qwen2.5 0.5B, shrunken, with random weights, so nothing is downloaded.  Needs the extra `frameworks`.
"""

from __future__ import annotations

import copy
import itertools
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import transformers
from arguments import positive, with_world
from peft import LoraConfig, PeftModel, get_peft_model
from tabulate import tabulate
from torch import Tensor, nn
from transformers import DataCollatorWithFlattening, Qwen2Config, Qwen2ForCausalLM

import sp
from sp.testing import run_processes

# Both round in float32, each in an order of its own, so each is held against float64: the ranks may be this many times
# as far from it as one process is.  Measured: logits 1.0 to 1.1, the furthest gradient 0.6 to 1.2, of the same gradient
# up to 1.7 times.
# How far one process is depends on the weights: gradients of keys' adapters are small differences of large sums, after
# two steps 3e-6, after eight 2e-5 off.  In float64 ranks and process agree to 1e-12 (tests/frameworks/test_peft.py).
TIMES = 2.0
# Over the steps of a training AdamW carries such differences on: see bytes_report.py.
BOUND_OF_STEPS = 1e-4

# peft 0.21 asks transformers 5.24 in a way that it will give up.
warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)

Pack = dict[str, Tensor]


class Seen(NamedTuple):
    """What a model says about one pack."""

    loss: float
    logits: Tensor
    gradients: dict[str, Tensor]  # of what trains, by name


def packs(count: int, length: int) -> list[Pack]:
    """Each [1, length]: whole modules of up to a quarter of it, one after another, the last one cut.

    `position_ids` restart with each document: that is how transformers is told, and so is sp.  The label of a
    document's first token is -100, since nothing before it can tell it."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda file: file.stat().st_size)
    texts = itertools.cycle(file.read_bytes()[: length // 4] for file in files if file.stat().st_size > 500)
    flatten = DataCollatorWithFlattening(return_tensors="pt")
    made: list[Pack] = []
    for _ in range(count):
        documents, left = [], length
        while left:
            text = next(texts)[:left]
            documents.append({"input_ids": list(text)})
            left -= len(text)
        made.append(dict(flatten(documents)))
    return made


def base_model() -> Qwen2ForCausalLM:
    """Qwen2.5 0.5B: its grouped heads, biases and tied embeddings; an eighth of its layers, a third of its width."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3, "max_position_embeddings": 32_768}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=256, use_cache=False, **sizes, **heads))


def with_adapters() -> PeftModel:
    """All linear layers have an adapter; nothing else trains."""
    model = base_model()
    torch.manual_seed(1)  # adapters begin at random: the same on every rank
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"))


def finetune(model: nn.Module, data: list[Pack]) -> list[float]:
    """A loop as anybody writes it: it does not know whether the model is spread over ranks."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=5e-3)
    losses: list[float] = []
    for pack in data:
        loss = model(**pack).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def look(model: nn.Module, pack: Pack) -> Seen:
    out = model(**pack)
    out.loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return Seen(out.loss.item(), out.logits.detach(), found)


def over_ranks(strategy: str, data: list[Pack], folder: str) -> tuple[list[float], Seen, str]:
    """On every rank: losses of the fine-tuning, the last pack after it, and what sp has proven of the masks."""
    transformers.logging.set_verbosity_error()
    model = sp.parallelize(with_adapters(), strategy, compile=False)  # adapters first: they are modules like others
    losses = finetune(model, data[:-1])
    if dist.get_rank() == 0:
        model.save_pretrained(folder)  # peft's: the adapter alone, under the names of a plain model
    masks = " & ".join(model.report().as_dict()["attentions"][0]["words"])
    return losses, look(model, data[-1]), masks


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value.  Not a number is infinitely far from everything."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).nan_to_num(torch.inf).item()


def compare_steps(ours: list[float], alone: list[float]) -> bool:
    rows = [(step, a, b, abs(a / b - 1)) for step, (a, b) in enumerate(zip(ours, alone, strict=True))]
    print(tabulate(rows, ["step", "loss over ranks", "alone", "Δ"], floatfmt=("", ".5f", ".5f", ".1e")))
    return all(row[-1] <= BOUND_OF_STEPS for row in rows)


def distances(seen: Seen, exact: Seen) -> dict[str, float]:
    """How far loss, logits and the furthest gradient are from those in float64."""
    assert seen.gradients.keys() == exact.gradients.keys()
    apart = [relative(gradient, exact.gradients[name]) for name, gradient in seen.gradients.items()]
    return {
        "loss": abs(seen.loss / exact.loss - 1),
        "logits": relative(seen.logits, exact.logits),
        f"furthest of {len(apart)} gradients": max(apart),
    }


def compare_adapter(ours: Seen, plain: Seen, exact: Seen) -> bool:
    """`exact` is the plain model in float64, the same weights in it."""
    found, alone = distances(ours, exact), distances(plain, exact)
    bounds = {name: TIMES * distance for name, distance in alone.items()}
    bounds["loss"] = max(bounds["loss"], bounds["logits"])  # one number may come right by luck
    rows = [(name, found[name], alone[name], bounds[name]) for name in found]
    print("\nThe saved adapter, loaded into a plain model, on a pack that it was not trained on, from float64:\n")
    print(tabulate(rows, ["", "over ranks", "plain model", "bound"], floatfmt=".1e"))
    return all(found[name] <= bounds[name] for name in found)


def main() -> int:
    parser = with_world(__doc__)
    parser.add_argument("--length", type=positive, default=4096, help="tokens of a pack; need not divide")
    parser.add_argument("--steps", type=positive, default=8)
    args = parser.parse_args()

    data, model = packs(args.steps + 1, args.length), with_adapters()
    count = [int((pack["position_ids"] == 0).sum()) for pack in data]
    trained, every = model.get_nb_trainable_parameters()
    print(f"Qwen2ForCausalLM with LoRA: {trained:,} of {every:,} parameters train")
    print(f"{len(data)} packs of {args.length} tokens, {sum(count)} documents in all")
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_processes(args.world, over_ranks, args.strategy, data, folder, timeout_s=1800)
        plain = PeftModel.from_pretrained(base_model(), folder, is_trainable=True)
    exact = copy.deepcopy(plain).double()
    losses, seen, masks = ranks[0]
    print(f"{args.strategy} over {args.world} ranks, scores by {masks}\n")
    equal = compare_steps(losses, finetune(model, data[:-1]))
    equal &= compare_adapter(seen, look(plain, data[-1]), look(exact, data[-1]))
    equal &= all(rank[0] == losses and rank[1].loss == seen.loss for rank in ranks)
    print(f"\n{'equal' if equal else 'NOT equal'} within rounding, adapters and all ranks")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
