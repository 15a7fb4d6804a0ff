"""Values: whether parameters and buffers hold the same on all ranks.  What one rank alone has loaded, or drawn from a
seed of its own, would otherwise be computed with: a wrong answer that nothing else shows.

Reading everything takes about as long as one product with all parameters, so it is done where there is reason to:

    first     at the first call, and at the first after a change in the model (its state is new)
    new       where tensors have been replaced by others
    3         where one rank's tensors were written to more often than another's (here 3 times) since the last time

After each time that finds no difference, twice as many calls go by before new tensors and writes are a reason again, as
a model whose tensors are replaced at every call (`torch.func.functional_call`) would else pay for a comparison each
time; but never more than LATEST, so that no write is found later than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor, nn

from sp.errors import InputError
from sp.inventory import Inventory
from sp.runtime.checksums import sums

LATEST = 64  # calls from one comparison to the next that there is reason for
FIRST, NEW = "first", "new"
_WAITS = " waits"


def whole_tensors(inventory: Inventory) -> dict[str, Tensor]:
    """Parameters and buffers by name, but those that are sharded (FSDP) or of a class that has its bits elsewhere."""
    named = chain(inventory.parameters.items(), inventory.buffers.items())
    return {name: value for name, value in named if type(value) in _PLAIN}


_PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def listed(tensors: Mapping[str, Tensor]) -> str:
    """A line for each: name, dtype, shape, checksum.  InputError for one without contents."""
    for name, value in tensors.items():
        if value.is_meta:
            raise InputError(
                f"{name!r} of the model is on the meta device",
                needed="parameters and buffers with contents, once the model is called",
                remedy="model.to_empty(device=…), then load a checkpoint",
            )
    return "\n".join(f"{name} {value.dtype} {list(value.shape)} {_word(value)}" for name, value in tensors.items())


def _word(value: Tensor) -> str:
    total, weighted = sums(value)
    return f"{total % 2**64:016x}{weighted % 2**64:016x}"


@dataclass
class Values:
    """When they were compared last, and what has happened since.  patience: the first call after a comparison at which
    new tensors and writes are a reason for another."""

    states: set[str] = field(default_factory=set[str])
    ids: tuple[int, ...] = ()
    writes: int = 0
    patience: int = 0
    calls: int = 0

    def changes(self, tensors: Mapping[str, Tensor], state: str) -> str:
        """What this rank says of them before a call: `first`, `new`, or how often they were written to."""
        if state not in self.states:
            return FIRST
        self.calls += 1
        waits = _WAITS if self.calls < self.patience else ""
        return f"{NEW if self.ids != _ids(tensors) else _writes(tensors) - self.writes}{waits}"

    def equal(self, tensors: Mapping[str, Tensor], state: str) -> None:
        """All ranks hold the same, as was seen now."""
        self.patience = min(2 * self.patience + 1, LATEST) if state in self.states else 0
        self.states.add(state)
        self.ids, self.writes, self.calls = _ids(tensors), _writes(tensors), 0


def to_be_compared(changes: Sequence[str]) -> bool:
    """Whether there is reason to, from what all ranks say; the same on every rank."""
    said = {each.removesuffix(_WAITS) for each in changes}
    ready = any(not each.endswith(_WAITS) for each in changes)
    return FIRST in said or (ready and (NEW in said or len(said) > 1))


def _ids(tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
    return tuple(map(id, tensors.values()))


def _writes(tensors: Mapping[str, Tensor]) -> int:
    return sum(0 if value.is_inference() else value._version for value in tensors.values())
