"""Differences: what ranks have where their hashes differ.  Long texts travel then, and only then.

rank 0   blocks.1.norm: sp.models.gpt.RMSNorm      →      the first line that differs, of each rank
rank 1   head: torch.nn.Linear
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from sp.runtime.comm import all_gather
from sp.runtime.world import World

EXPLAINED = frozenset({"call", "model", "gradients", "program", "values"})  # of a statement: what is a hash
_SHOWN = 160  # characters of a line
_BEFORE = 40  # of them in front of where they differ


def shortened(text: str, limit: int) -> str:
    """At most about `limit` characters, of which the last are a hash of all, so that what differs still does."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def exchange_texts(world: World, mine: str, device: torch.device) -> list[str]:
    """Every rank's text, in rank order.  All ranks call it."""
    if world.size == 1:
        return [mine]
    bits = torch.frombuffer(bytearray(mine.encode() or b" "), dtype=torch.uint8).to(device)
    size = torch.tensor([len(bits)], device=device)
    sizes = [int(each) for each in all_gather(world, size, [(1,)] * world.size)]
    texts = all_gather(world, bits, [(each,) for each in sizes])
    return [bytes(text.cpu().numpy()).decode() for text in texts]


def differing_lines(texts: Sequence[str]) -> list[str]:
    """The first line in which the texts differ, of each; where lines are long, the part that does."""
    lines = [text.splitlines() for text in texts]
    place = next((place for place in range(max(map(len, lines))) if len({_at(each, place) for each in lines}) > 1), 0)
    found = [_at(each, place) for each in lines]
    column = next((at for at in range(max(map(len, found))) if len({line[at : at + 1] for line in found}) > 1), 0)
    begin = column - _BEFORE if max(map(len, found)) > _SHOWN and column > _BEFORE else 0
    return [f"{'…' if begin else ''}{line[begin : begin + _SHOWN].strip()}" for line in found]


def _at(lines: Sequence[str], place: int) -> str:
    return lines[place] if place < len(lines) else "(nothing more)"
