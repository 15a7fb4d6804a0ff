"""Agreement: before anything is exchanged, the ranks of a group say what they are about to do, and compare.

Each rank states a few words (program, shapes, a checksum, or the error it met).  One all-gather of fixed size brings
all statements to all ranks, so that everybody raises, or nobody does, and no rank waits for one that has given up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from sp.errors import InputError, RankMismatchError
from sp.runtime.checksums import sums
from sp.runtime.comm import all_gather
from sp.runtime.differences import EXPLAINED, shortened
from sp.runtime.world import World

STATEMENT_BYTES = 2048  # for good: ranks of unlike versions of sp must be able to tell each other so
_LIMITS = {"options": 400, "shapes": 600}  # characters


@dataclass(frozen=True)
class Statement:
    """What one rank says.  Shards may be of other lengths, and who has changes to tell need not be all; everything else
    may not differ."""

    versions: str = ""
    options: str = ""
    call: str = ""
    model: str = ""
    gradients: str = ""
    program: str = ""
    values: str = ""
    shapes: str = ""
    contents: str = ""
    length: str = ""
    changes: str = ""
    error: str = ""


_MAY_DIFFER = frozenset({"length", "changes", "error"})
Explain = Callable[[str], Sequence[str]]  # of a field that is a hash: what each rank has there, where they differ


def exchange_statements(world: World, mine: Statement, device: torch.device) -> list[Statement]:
    """Every rank's statement, in rank order."""
    if world.size == 1:
        return [mine]
    text = _written(mine)
    sheet = torch.zeros(STATEMENT_BYTES, dtype=torch.uint8, device="cpu")
    sheet[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    sheets = all_gather(world, sheet.to(device), [(STATEMENT_BYTES,)] * world.size, "what all ranks say before a call")
    return [_read(bytes(sheet.cpu().numpy()).rstrip(b"\0"), mine) for sheet in sheets]


def _written(mine: Statement) -> bytes:
    """In as many bytes as there are: long words end in a hash, so that what differs still does; errors are cut."""
    said = asdict(mine)
    said.update({name: shortened(said[name], limit) for name, limit in _LIMITS.items()})
    error, text = mine.error, b""
    while not text or len(text) > STATEMENT_BYTES:
        text = json.dumps({**said, "error": error}, ensure_ascii=False).encode()
        error = error[: len(error) * 3 // 4]
    return text


def _read(sheet: bytes, mine: Statement) -> Statement:
    """Of another version of sp, what this one knows of; if it says nothing of its version, that is the difference."""
    known = {field.name for field in fields(Statement)}
    said = {name: word for name, word in json.loads(sheet).items() if name in known}
    return Statement(**{"versions": "an older version of sp" if mine.versions else "", **said})


def check_agreement(statements: Sequence[Statement], rank: int, explain: Explain | None = None) -> None:
    """RankMismatchError when another rank has met an error, or when any two ranks differ; the same on every rank.

    explain: may communicate, and is called on all ranks or on none."""
    names = [field.name for field in fields(Statement) if field.name not in _MAY_DIFFER]
    differing = [name for name in names if len({getattr(each, name) for each in statements}) > 1]
    failed = [(other, statement.error) for other, statement in enumerate(statements) if statement.error]
    if failed and "versions" not in differing:
        other, error = failed[0]
        raise RankMismatchError(
            f"rank {other} could not take part in this call: {error}", remedy="see that rank's error"
        )
    if differing:
        name = differing[0]
        said = [getattr(statement, name) for statement in statements]
        shown = explain(name) if explain is not None and name in EXPLAINED else said
        listed = "; ".join(f"rank {other}: {word}" for other, word in enumerate(shown))
        raise RankMismatchError(
            f"the ranks disagree about {_MEANING[name]}: {listed}",
            needed=f"the same on all {len(statements)} ranks (this is rank {rank})",
            remedy=_REMEDY[name],
        )


_MEANING = {
    "versions": "the versions of the packages",
    "options": "the options of sp.parallelize",
    "call": "how the model is called",
    "model": "what has changed in the model since it was captured",
    "gradients": "which gradients there will be",
    "program": "the program",
    "values": "what parameters and buffers hold",
    "shapes": "the shapes of the inputs",
    "contents": "the contents of the inputs",
}
_ONE_STREAM = (
    "with inputs='global' the ranks that share a sequence pass the same batch:"
    " give them one stream, as DataLoader(…, sampler=sp.data.sampler(dataset, mesh)) does"
)
_REMEDY = {
    "versions": "install the same versions on every machine",
    "options": "call sp.parallelize with the same arguments on every rank",
    "call": "pass the same arguments in the same mode (train or eval) on every rank",
    "model": "change attributes, modules and parameters of the model on every rank alike",
    "gradients": "build one model, freeze the same parameters, and use torch.no_grad and no_sync, on every rank alike",
    "program": "build the model from the same code and the same versions on every rank",
    "values": "seed every rank alike before the model is made, load the same checkpoint on every rank, or send each"
    " tensor of one rank to the others: torch.distributed.broadcast(tensor.detach(), 0)",
    "shapes": _ONE_STREAM,
    "contents": _ONE_STREAM,
}


def draw_seed(world: World, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A seed for the noise of one call: int64 [], that of rank 0.  All ranks draw, so that their generators keep step.

    generator: on the CPU; None is torch's own.  device: where the ranks communicate."""
    seed = torch.randint(torch.iinfo(torch.int64).max, (), generator=generator, device="cpu")
    return all_gather(world, seed.to(device), [()] * world.size, "the seed of a call")[0].cpu()


def checksum(tensors: Sequence[Tensor]) -> str:
    """A short word that differs when contents differ: two sums over the bits, one of them weighted by place.

    InputError for tensors without contents."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.is_meta:
            raise InputError("an input is on the meta device", needed="tensors with contents")
        digest.update(f"{tensor.dtype} {sums(tensor)}".encode())
    return digest.hexdigest()[:12]
