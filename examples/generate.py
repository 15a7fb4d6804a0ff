"""transformers' `generate` with keys and values spread over processes: the same tokens as on one device.

    python examples/generate.py --world 2 --prompt 2000

The config is that of Qwen3 0.6B, shrunken, with random weights, so nothing is downloaded; the prompt is Python's own
sources, byte by byte.  Ends with exit code 1 when any token differs, greedy or sampled.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import torch
import transformers
from arguments import positive, with_world
from bytes_data import VOCABULARY, PythonSources
from tabulate import tabulate
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

import sp
from sp.testing import run_processes

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.0, "top_k": 50},
}


class Row(NamedTuple):
    """One way to generate, as one rank found it."""

    way: str
    equal: bool
    ours: float  # seconds, of all tokens
    alone: float
    tokens: str


def make_model() -> Qwen3ForCausalLM:
    """Qwen3 0.6B with a seventh of its layers, a quarter of its width, and its heads of 128: two for each key head."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=40_960,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def timed(model: Any, ids: Tensor, how: dict[str, Any], count: int) -> tuple[Tensor, float]:
    """The new tokens, and the seconds that they took."""
    torch.manual_seed(1)  # the same on every rank: each draws all tokens
    begin = time.perf_counter()
    tokens = model.generate(ids, max_new_tokens=count, **how)
    return tokens[:, ids.shape[1] :], time.perf_counter() - begin


def compare(strategy: str, prompt: list[int], count: int) -> list[Row]:
    """On every rank: both ways, with the model alone and with the same model spread over all ranks."""
    transformers.logging.set_verbosity_error()
    model, ids = make_model(), torch.tensor([prompt])
    pmodel = sp.parallelize(model, strategy=strategy, compile=False)
    pmodel.generate(ids, max_new_tokens=2, do_sample=False)  # captures
    rows: list[Row] = []
    for way, how in WAYS.items():
        ours, seconds = timed(pmodel, ids, how, count)
        alone, single = timed(model, ids, how, count)
        rows.append(Row(way, torch.equal(ours, alone), seconds, single, str(ours[0, :8].tolist())))
    return rows


def main() -> int:
    parser = with_world(__doc__)
    parser.add_argument("--prompt", type=positive, default=2000, help="bytes of the prompt")
    parser.add_argument("--new", type=positive, default=16, help="tokens to generate")
    options = parser.parse_args()
    prompt = PythonSources().batch(0, 1, options.prompt)[0].tolist()
    found = run_processes(options.world, compare, options.strategy, prompt, options.new, timeout_s=600)
    headers = ("", "tokens equal", f"seconds on {options.world} ranks", "alone", "first tokens")
    print(tabulate(found[0], headers, floatfmt=".2f"))
    equal = all(row.equal for rows in found for row in rows)
    verdict = "the same tokens on every rank as on one device" if equal else "tokens DIFFER from those of one device"
    print(f"{options.strategy} over {options.world} ranks, {options.prompt} + {options.new} tokens: {verdict}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
