"""`estimate`: the step time, bytes and memory of every strategy, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp.costs.machine import Machine, find_machine
from sp.costs.phase import Job, Phase
from sp.costs.reasons import reasons
from sp.costs.shape import ModelShape
from sp.costs.table import estimates_table
from sp.costs.transports import TRANSPORTS
from sp.errors import InputError, StrategyError
from sp.mask import CAUSAL, FULL
from sp.strategy import STRATEGIES, Strategy, find_strategy


@dataclass(frozen=True)
class Estimate:
    """One strategy: one training step of one sequence, as the slowest rank sees it.

    forward, backward: attention.  dense: seconds of everything else that is computed.  memory: bytes of one rank, for
    activations, buffers, parameters and their gradients.  fits: whether the machine has so many.
    why: where the time goes that an even share at full speed would not take."""

    strategy: Strategy
    forward: Phase
    backward: Phase
    dense: float
    memory: float
    fits: bool
    why: str

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.forward.seconds + self.backward.seconds + self.dense

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return self.forward.exposed + self.backward.exposed

    @property
    def sent(self) -> float:
        """Bytes that one rank sends."""
        return self.forward.sent + self.backward.sent


@dataclass(frozen=True)
class Estimates:
    """What `estimate` found; `print(estimates)` shows it as a table, the fastest strategy first."""

    shape: ModelShape
    machine: Machine
    length: int
    world: int
    found: tuple[Estimate, ...]

    @property
    def best(self) -> Estimate:
        """The fastest that fits into memory, or of all where none does."""
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


def estimate(
    shape: ModelShape,
    length: int,
    world: int,
    machine: Machine | str,
    *,
    causal: bool = True,
    recompute: bool = False,
    strategies: Sequence[str] | None = None,
) -> Estimates:
    """What one training step on one sequence of `length` tokens would take on `world` ranks, for each strategy.

        llama = sp.costs.ModelShape(layers=32, width=4096, heads=32, kv_heads=8, head_width=128,
                                    mlp_width=14336, vocab_size=128256)
        estimates = sp.estimate(llama, 1_048_576, 64, "h100")
        print(estimates)  # a table, with reasons
        estimates.best.strategy.name  # for sp.parallelize

    machine: a name in `sp.costs.MACHINES`, or one of your own.
    recompute: activations of a block, but those of attention, are computed again in backward.
    strategies: names; None takes all of `sp.STRATEGIES`.

    Nothing is run and no process group is needed; a world of 4,096 takes no longer than one of 2.  The length is
    rounded up until each rank has the same even number of tokens.  docs/costs.md says what the model leaves out.

    Raises StrategyError for an unknown strategy or machine or a world without ranks, InputError for fewer tokens than
    ranks."""
    machine = find_machine(machine)
    if world < 1:
        raise StrategyError(f"a world of {world} ranks", needed="at least one rank")
    if length < world:
        raise InputError(f"{length} tokens for {world} ranks", needed="at least one token for each rank")
    job = Job(shape, machine, 2 * -(-length // (2 * world)), world)
    known = [find_strategy(name) for name in strategies or STRATEGIES]
    return Estimates(shape, machine, length, world, tuple(_estimate(job, each, causal, recompute) for each in known))


def _estimate(job: Job, strategy: Strategy, causal: bool, recompute: bool) -> Estimate:
    assert strategy.transport in TRANSPORTS, f"the cost model has no line for the transport {strategy.transport!r}"
    shape, machine = job.shape, job.machine
    attention = TRANSPORTS[strategy.transport](job, strategy.layout, CAUSAL if causal else FULL)
    forward, backward = attention.forward * shape.layers, attention.backward * shape.layers
    dense = (4 if recompute else 3) * job.local * shape.dense_flops / machine.matmul_flops
    activations = job.local * shape.activation_bytes(recompute)
    memory = activations + attention.buffers + 2 * shape.parameters * shape.item_bytes
    why = reasons(job, attention, dense)
    return Estimate(strategy, forward, backward, dense, memory, memory <= machine.memory, why)
