"""Train a diffusion transformer by flow matching, and sample from it, its image tokens spread over processes.

    python examples/diffusion_transformer.py --world 2

The model is diffusers' Flux, small and with random weights: tokens of a text and of an image attend to one another.
The images are discs of four colours in four places, and the text says which.  The same training runs over the ranks and
in one process; then rank 0 has saved the model by diffusers' `save_pretrained`, and a plain model that loads it samples
the same images as the ranks, larger than those of the training.  Ends with exit code 1 when they differ.

The strategy: there is no causal mask, every token sees every token, so ranks work alike under each of them, and
striping balances nothing (`ring`, `striped` and `zigzag` cost the same).  What counts is what is sent: `ulysses` sends
2/P of what `ring` does on P ranks, provided that the heads (4) are at least as many; with more ranks take `ring`.

Needs the extra `hf`.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from arguments import positive, with_world
from diffusers import FluxTransformer2DModel
from tabulate import tabulate
from torch import Tensor, nn

import sp
from sp.testing import run_processes

# float32 rounds by 6e-8; AdamW carries differences on from step to step (see bytes_report.py), sampling only adds up.
BOUND_OF_STEPS = 1e-4
BOUND = 1e-5
PATCH = 2
BATCH = 4
TEXT_WIDTH = 32
COLOURS = torch.tensor([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
PLACES = torch.tensor([[0.3, 0.3], [0.3, 0.7], [0.7, 0.3], [0.7, 0.7]])  # of the centre, down and right

Run = tuple[list[float], Tensor]  # the loss of each step, samples [B, 3, side, side]


def discs(kinds: Tensor, side: int) -> Tensor:
    """kinds [B, 2], the numbers of a colour and of a place → images [B, 3, side, side] of −1 to 1."""
    at = (torch.arange(side) + 0.5) / side
    away = [(at - centre[:, None]) ** 2 for centre in PLACES[kinds[:, 1]].unbind(1)]  # [B, side] down, and right
    inside = away[0][:, :, None] + away[1][:, None, :] < 0.04
    return torch.where(inside[:, None], COLOURS[kinds[:, 0]][:, :, None, None], 0.0)


def to_tokens(images: Tensor) -> Tensor:
    """[B, 3, side, side] → [B, (side / PATCH)², 3 · PATCH²]."""
    return F.pixel_unshuffle(images, PATCH).flatten(2).transpose(1, 2)


def to_images(tokens: Tensor, side: int) -> Tensor:
    return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (side // PATCH, side // PATCH)), PATCH)


def conditions(kinds: Tensor, side: int) -> dict[str, Any]:
    """What Flux takes beside noisy tokens and time: two words as vectors, and where each token stands."""
    words = torch.randn(2, 4, TEXT_WIDTH, generator=torch.Generator().manual_seed(2))  # in place of a text encoder
    text = torch.stack([words[0][kinds[:, 0]], words[1][kinds[:, 1]]], 1)
    places = torch.tensor([(0, *place) for place in itertools.product(range(side // PATCH), repeat=2)])
    return {
        "encoder_hidden_states": text,
        "pooled_projections": text.mean(1),
        "txt_ids": torch.zeros(2, 3),
        "img_ids": places.float(),
        "return_dict": False,  # torch.export does not know the classes that diffusers returns otherwise
    }


def make_model() -> FluxTransformer2DModel:
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=3 * PATCH**2,
        num_layers=2,  # text and image side by side
        num_single_layers=2,  # then as one sequence
        num_attention_heads=4,
        attention_head_dim=32,
        axes_dims_rope=(8, 12, 12),
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=TEXT_WIDTH,
    )


def train(model: nn.Module, steps: int, side: int) -> list[float]:
    """Flow matching: between an image (t = 0) and noise (t = 1), tell the way from one to the other."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), list[float]()
    for step in range(steps):
        random = torch.Generator().manual_seed(step)  # the same on every rank, and in one process
        kinds = torch.randint(4, (BATCH, 2), generator=random)
        tokens = to_tokens(discs(kinds, side))
        noise = torch.randn(tokens.shape, generator=random)
        time = torch.rand(BATCH, generator=random)
        mixed = torch.lerp(tokens, noise, time[:, None, None])
        (way,) = model(hidden_states=mixed, timestep=time, **conditions(kinds, side))
        loss = F.mse_loss(way, noise - tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def sample(model: nn.Module, side: int, steps: int = 6) -> Tensor:
    """Two images [2, 3, side, side], by Euler's method from noise."""
    kinds = torch.tensor([[0, 0], [2, 3]])
    tokens = torch.randn(2, (side // PATCH) ** 2, 3 * PATCH**2, generator=torch.Generator().manual_seed(3))
    for step in range(steps):
        time = torch.full((2,), 1 - step / steps)
        tokens = tokens - model(hidden_states=tokens, timestep=time, **conditions(kinds, side))[0] / steps
    return to_images(tokens, side)


def over_ranks(strategy: str, steps: int, side: int, larger: int, folder: str) -> tuple[Run, dict[str, Any]]:
    """On every rank: losses, samples, and what sp says of the first attention."""
    model = sp.parallelize(
        make_model(),
        strategy,
        sequence_dim={"hidden_states": 1, "img_ids": 0},  # the text is short: every rank has it whole
        compile=False,
    )
    losses = train(model, steps, side)
    if dist.get_rank() == 0:
        model.save_pretrained(folder)
    return (losses, sample(model, larger)), model.report().as_dict()["attentions"][0]


def main() -> int:
    parser = with_world(__doc__, strategy="ulysses")
    parser.add_argument("--steps", type=positive, default=8)
    parser.add_argument("--side", type=positive, default=48, help=f"of an image in training, a multiple of {PATCH}")
    parser.add_argument("--larger", type=positive, default=80, help="the same for samples")
    args = parser.parse_args()
    if odd := [name for name in ("side", "larger") if getattr(args, name) % PATCH]:
        parser.error(f"--{odd[0]} must be a multiple of {PATCH}")

    with tempfile.TemporaryDirectory() as folder:
        work = args.strategy, args.steps, args.side, args.larger, folder
        ranks = run_processes(args.world, over_ranks, *work, timeout_s=1800)
        saved = FluxTransformer2DModel.from_pretrained(folder)
    alone = train(make_model(), args.steps, args.side)
    (losses, _), attention = ranks[0]
    print(f"{args.strategy} over {args.world} ranks, {(args.side // PATCH) ** 2} image tokens and 2 of text")
    mask, balance, sent = attention["mask"], attention["balance"], max(attention["sent_forward"]) / 1024
    print(f"mask {mask}, work balanced to {balance:.1%}, {sent:,.0f} KiB sent in each attention of a sample\n")
    rows = [(step, a, b, abs(a / b - 1)) for step, (a, b) in enumerate(zip(losses, alone, strict=True))]
    print(tabulate(rows, ["step", "loss over ranks", "alone", "Δ"], floatfmt=("", ".5f", ".5f", ".1e")))
    plain = sample(saved, args.larger)
    apart = max((found[1] - plain).abs().max().nan_to_num(torch.inf).item() for found, _ in ranks)
    print(f"\nsamples of {(args.larger // PATCH) ** 2} tokens: within {apart:.0e} of those of the plain model")
    equal = apart <= BOUND * plain.abs().max() and all(row[-1] <= BOUND_OF_STEPS for row in rows)
    print(f"{'equal' if equal else 'NOT equal'} within rounding, losses and samples")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
