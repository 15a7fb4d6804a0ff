"""transformers' Llama with its sequence striped over processes: the same loss, logits and gradients as on one device.

    python examples/hf_llama.py --world 2

The config is that of Llama 3.2 1B, shrunken, with random weights, so nothing is downloaded.  Ends with exit code 1 when
a difference is larger than rounding explains.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

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


class Comparison(NamedTuple):
    """How far one rank found the parallel model from the model alone."""

    losses: tuple[float, float]  # parallel, alone
    loss: float  # the differences
    logits: float
    gradient: float  # of the parameter where it is largest
    worst: str  # which is this one
    report: str


def make_model() -> LlamaForCausalLM:
    """Llama 3.2 1B with a quarter of its layers, an eighth of its width, and the same ratio of heads: four to one."""
    torch.manual_seed(0)
    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        rope_parameters=rope,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@torch.no_grad()
def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest one, relative to the largest value.  Not a number is infinitely far from everything."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).nan_to_num(torch.inf).item()


def compare(strategy: str, length: int, compiled: bool) -> Comparison:
    """On every rank: one step of the model alone, then one of the same model spread over all ranks."""
    transformers.logging.set_verbosity_error()
    model = make_model()
    ids = torch.randint(model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))

    single = model(ids, labels=ids)
    single.loss.backward()
    expected = gradients(model)
    model.zero_grad()

    pmodel = sp.parallelize(model, strategy=strategy, compile=compiled)
    out = pmodel(ids, labels=ids)
    out.loss.backward()

    apart = {name: difference(gradient, expected[name]) for name, gradient in gradients(pmodel).items()}
    assert apart.keys() == expected.keys()
    worst = max(apart, key=apart.__getitem__)
    return Comparison(
        losses=(out.loss.item(), single.loss.item()),
        loss=difference(out.loss, single.loss),
        logits=difference(out.logits, single.logits),
        gradient=apart[worst],
        worst=worst,
        report=str(pmodel.report()),
    )


def main() -> int:
    parser = with_world(__doc__)
    parser.add_argument("--length", type=positive, default=1001, help="tokens of the whole sequence; need not divide")
    parser.add_argument("--compile", action="store_true", help="run the rewritten graph under torch.compile")
    args = parser.parse_args()

    ranks = run_processes(args.world, compare, args.strategy, args.length, args.compile, timeout_s=600)
    first = ranks[0]
    print(first.report)
    print(f"\nLlamaForCausalLM, {args.length} tokens, {args.strategy} over {args.world} ranks against one device\n")
    loss, logits = max(rank.loss for rank in ranks), max(rank.logits for rank in ranks)
    worst = max(ranks, key=lambda rank: rank.gradient)
    rows = [
        ["loss", loss, "{:.6f}, single device {:.6f}".format(*first.losses)],
        ["logits", logits, "relative to the largest logit"],
        ["gradients", worst.gradient, f"of {worst.worst}, the furthest of all parameters"],
    ]
    print(tabulate(rows, ["", "difference", ""], floatfmt=".1e", tablefmt="simple"))
    equal = all(found <= BOUND for found in (loss, logits, worst.gradient))
    print(f"\n{'equal' if equal else 'NOT equal'} within {BOUND:.0e} on every rank")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
