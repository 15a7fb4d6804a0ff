"""`estimate`: the step time, bytes and memory of every strategy, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sp.costs.machine import Machine, find_machine
from sp.costs.phase import Job, Phase
from sp.costs.reasons import Priced, balance_of, reasons
from sp.costs.shape import ModelShape
from sp.costs.sharding import Sharding
from sp.costs.table import estimates_dict, estimates_table
from sp.costs.transports import TRANSPORTS
from sp.costs.workload import Attending, Workload
from sp.errors import InputError, StrategyError
from sp.strategy import STRATEGIES, Strategy, bind_names, bind_size, candidates

_NOTHING = Phase(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Estimate:
    """One strategy: one training step, as the slowest rank sees it.

        >>> ring = sp.estimate(llama, 1_048_576, 64, "h100")["ring"]
        >>> ring.seconds > ring.exposed, ring.sent > 2**30
        (True, True)

    forward, backward: attention.  outputs: gathering those that are asked for whole.  parameters: gathering them where
    they are sharded, and scattering gradients.  dense: seconds of everything else that is computed.  memory: bytes of
    one rank, for activations, buffers, parameters and their gradients.  fits: whether the machine has so many.
    balance: the mean work of the ranks over that of the busiest, for which the others wait.
    why: where the time goes that an even share at full speed would not take."""

    strategy: Strategy
    forward: Phase
    backward: Phase
    outputs: Phase
    parameters: Phase
    dense: float
    memory: float
    fits: bool
    balance: float
    why: str

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self._phases.seconds + self.dense

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return self._phases.exposed

    @property
    def sent(self) -> float:
        """Bytes that one rank sends."""
        return self._phases.sent

    @property
    def _phases(self) -> Phase:
        return self.forward + self.backward + self.outputs + self.parameters


@dataclass(frozen=True)
class Estimates:
    """What `estimate` found; `print(estimates)` shows it as a table, the fastest strategy first.

        >>> estimates = sp.estimate(llama, 65_536, 8, "h100", strategies=["ring", "striped"])
        >>> estimates.length, estimates.best.strategy.name, estimates["ring"].balance < estimates["striped"].balance
        (65536, 'striped', True)
        >>> list(estimates.as_dict())
        ['machine', 'estimates', 'refused']

    refused: of the strategies that this world cannot run, the name and the reason."""

    workload: Workload
    machine: Machine
    world: int
    found: tuple[Estimate, ...]
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the whole sequence."""
        return self.workload.length

    @property
    def best(self) -> Estimate:
        """The fastest that fits into memory, or of all where none does; of equals the first in `sp.STRATEGIES`."""
        return min(self.found, key=lambda each: (not each.fits, each.seconds))

    def __getitem__(self, strategy: str) -> Estimate:
        """The estimate of one strategy, by name; StrategyError where it was not asked for."""
        for each in self.found:
            if each.strategy.name == strategy:
                return each
        asked = ", ".join(each.strategy.name for each in self.found)
        raise StrategyError(f"there is no estimate of {strategy!r}", needed=f"one of: {asked}")

    def __str__(self) -> str:
        return estimates_table(self)

    def as_dict(self) -> dict[str, Any]:
        """The same facts as plain data, ready for json.  Seconds of a step, bytes of one rank."""
        return estimates_dict(self)


def estimate(
    shape: ModelShape,
    length: int,
    world: int | tuple[int, int],
    machine: Machine | str,
    *,
    causal: bool = True,
    recompute: bool = False,
    sharding: Sharding | None = None,
    strategies: Sequence[str] | None = None,
) -> Estimates:
    """The estimates of a model that is known by its sizes; see `sp.estimate`.

    >>> sp.costs.estimate(llama, 65_536, 8, "h100").best.strategy.name
    'zigzag'
    """
    _, mesh = bind_size(None, world)
    only = None if strategies is None else bind_names(strategies, world)
    work = shape.workload(length, causal=causal, recompute=recompute)
    return estimate_workload(work, mesh, find_machine(machine), only, sharding)


def estimate_workload(
    workload: Workload,
    mesh: tuple[int, ...],
    machine: Machine,
    only: Sequence[Strategy] | None = None,
    sharding: Sharding | None = None,
) -> Estimates:
    """Each strategy that a mesh of this shape can run, in the order of the table, or some alone, bound to the mesh.

        >>> found = sp.costs.estimate_workload(llama.workload(65_536), (2, 4), sp.costs.MACHINES["h100"])
        >>> [each.strategy.name for each in found.found]
        ['usp', 'usp_zigzag', 'double_ring']

    Raises InputError for fewer tokens than ranks."""
    world = prod(mesh)
    if workload.length < world:
        raise InputError(f"{workload.length} tokens for {world} ranks", needed="at least one token for each rank")
    refused = [] if only is not None else [(each.name, _refusal(each, mesh)) for each in STRATEGIES.values()]
    known = candidates(mesh) if only is None else only
    sharding = sharding or Sharding(1)
    found = tuple(_estimate(workload, world, machine, each, sharding) for each in known if each.transport in TRANSPORTS)
    return Estimates(workload, machine, world, found, tuple(each for each in refused if each[1]))


def _refusal(strategy: Strategy, mesh: tuple[int, ...]) -> str:
    """Why it is not estimated; empty where it is."""
    if not strategy.takes(len(mesh)):
        return f"takes a mesh of {'two axes' if strategy.axes else 'one axis'}"
    return "" if strategy.transport in TRANSPORTS else f"the cost model does not know {strategy.transport!r}"


def _estimate(work: Workload, world: int, machine: Machine, strategy: Strategy, sharding: Sharding) -> Estimate:
    local = _share(work.length, world)
    priced = [_price(each, world, machine, strategy) for each in work.attentions]
    forward = sum((each.attention.forward * each.count for each in priced), _NOTHING)
    backward = sum((each.attention.backward * each.count for each in priced), _NOTHING) if work.trains else _NOTHING
    outputs = _gathered(local * work.output_bytes, world, machine)
    dense = (local * work.token_flops + work.shared_flops) * (work.repeats if work.trains else 1) / machine.matmul_flops
    buffers = max((each.attention.buffers * each.batch for each in priced), default=0.0)
    kept = sum(each.attention.kept * each.count for each in priced) if work.trains else 0.0
    memory = local * work.token_bytes + work.shared_bytes + kept + buffers + sharding.memory(work)
    parameters = sharding.transfers(work, machine, dense)
    why, balance = reasons(priced, outputs, parameters, dense, work.trains), balance_of(priced)
    phases = (forward, backward, outputs, parameters)
    return Estimate(strategy, *phases, dense, memory, memory <= machine.memory, balance, why)


def _share(total: int, world: int) -> int:
    """Tokens of one rank, an even number: `total` is rounded up until all have as many."""
    return 2 * -(-total // (2 * world))


def _price(each: Attending, world: int, machine: Machine, strategy: Strategy) -> Priced:
    """A batch is so many attentions that share their messages: each of them pays a part of the latency."""
    part = machine.with_latency_of(1 / each.batch)
    local, keys = each.queries if each.shared else _share(each.queries, world), _share(each.keys, world)
    transport = TRANSPORTS["merge" if each.shared else strategy.transport]
    job = Job(each.shape, part, local, world, keys, strategy.shape[-1] if strategy.shape else world)
    return Priced(job, transport(job, strategy.layout, each.mask), each.batch, each.count * each.batch)


def _gathered(bytes_: float, world: int, machine: Machine) -> Phase:
    """Outputs that all ranks get whole; nothing hides it."""
    hops = world - 1
    return Phase(0.0, 0.0, hops * machine.hop(bytes_, world) if hops and bytes_ else 0.0, hops * bytes_)
