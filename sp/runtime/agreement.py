"""Agreement: before anything is exchanged, the ranks of a group say what they are about to do, and compare.

Each rank states a few words (program, shapes, a checksum, or the error it met).  One all-gather of fixed size brings
all statements to all ranks, so that everybody raises, or nobody does, and no rank waits for one that has given up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from sp.errors import InputError, RankMismatchError
from sp.runtime.comm import all_gather
from sp.runtime.world import World

STATEMENT_BYTES = 2048
_SHAPES = 800  # characters


@dataclass(frozen=True)
class Statement:
    """What one rank says.  `length` may differ between ranks (shards); everything else may not."""

    call: str = ""
    model: str = ""
    gradients: str = ""
    program: str = ""
    shapes: str = ""
    contents: str = ""
    length: str = ""
    error: str = ""


_MAY_DIFFER = frozenset({"length", "error"})


def exchange_statements(world: World, mine: Statement, device: torch.device) -> list[Statement]:
    """Every rank's statement, in rank order."""
    if world.size == 1:
        return [mine]
    text = _written(mine)
    sheet = torch.zeros(STATEMENT_BYTES, dtype=torch.uint8)
    sheet[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    sheets = all_gather(world, sheet.to(device), [(STATEMENT_BYTES,)] * world.size, "what all ranks say before a call")
    return [Statement(**json.loads(bytes(sheet.cpu().numpy()).rstrip(b"\0"))) for sheet in sheets]


def _written(mine: Statement) -> bytes:
    """In as many bytes as there are: long shapes end in a hash, so that what differs still does; errors are cut."""
    shapes = mine.shapes
    if len(shapes) > _SHAPES:
        shapes = f"{shapes[:_SHAPES]}… ({hashlib.sha256(shapes.encode()).hexdigest()[:16]})"
    error, text = mine.error, b""
    while not text or len(text) > STATEMENT_BYTES:
        text = json.dumps({**asdict(mine), "shapes": shapes, "error": error}, ensure_ascii=False).encode()
        error = error[: len(error) * 3 // 4]
    return text


def check_agreement(statements: Sequence[Statement], rank: int) -> None:
    """RankMismatchError when another rank has met an error, or when any two ranks differ; the same on every rank."""
    failed = [(other, statement.error) for other, statement in enumerate(statements) if statement.error]
    if failed:
        other, error = failed[0]
        raise RankMismatchError(
            f"rank {other} could not take part in this call: {error}", remedy="see that rank's error"
        )
    for field in fields(Statement):
        said = [getattr(statement, field.name) for statement in statements]
        if field.name not in _MAY_DIFFER and len(set(said)) > 1:
            listed = "; ".join(f"rank {other}: {word}" for other, word in enumerate(said))
            raise RankMismatchError(
                f"the ranks disagree about {_MEANING[field.name]}: {listed}",
                needed=f"the same on all {len(statements)} ranks (this is rank {rank})",
                remedy=_REMEDY[field.name],
            )


_MEANING = {
    "call": "how the model is called",
    "model": "what has changed in the model since it was captured",
    "gradients": "which gradients there will be",
    "program": "the program",
    "shapes": "the shapes of the inputs",
    "contents": "the contents of the inputs",
}
_ONE_STREAM = (
    "with inputs='global' the ranks that share a sequence pass the same batch:"
    " give them one stream, as DataLoader(…, sampler=sp.data.sampler(dataset, mesh)) does"
)
_REMEDY = {
    "call": "pass the same arguments in the same mode (train or eval) on every rank",
    "model": "change attributes, modules and parameters of the model on every rank alike",
    "gradients": "freeze the same parameters, and use torch.no_grad and no_sync, on every rank alike",
    "program": "build the model from the same code and the same versions on every rank",
    "shapes": _ONE_STREAM,
    "contents": _ONE_STREAM,
}


def draw_seed(world: World, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A seed for the noise of one call: int64 [], that of rank 0.  All ranks draw, so that their generators keep step.

    generator: on the CPU; None is torch's own.  device: where the ranks communicate."""
    seed = torch.randint(torch.iinfo(torch.int64).max, (), generator=generator)
    return all_gather(world, seed.to(device), [()] * world.size, "the seed of a call")[0].cpu()


def checksum(tensors: Sequence[Tensor]) -> str:
    """A short word that differs when contents differ: two sums over the bits, one of them weighted by place.

    InputError for tensors without contents."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.is_meta:
            raise InputError("an input is on the meta device", needed="tensors with contents")
        flat = tensor.detach().contiguous().flatten().view(_BITS[tensor.dtype.itemsize]).to(torch.int64)
        place = torch.arange(flat.numel(), device=flat.device) % 65_521 + 1
        digest.update(f"{tensor.dtype} {int(flat.sum())} {int((flat * place).sum())}".encode())
    return digest.hexdigest()[:12]


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
