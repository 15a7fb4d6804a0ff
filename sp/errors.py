"""The errors a person sees, and the one place that words them.

Every message says what was found, what was needed and what to do:

    sp.StrategyError: there is no strategy 'stripped'
      needed: one of: allgather, double_ring, ring, striped, ulysses, usp, usp_zigzag, zigzag
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SpError(ValueError):
    """Base of every error that `sp` raises for a person to read and act on.

    >>> try:
    ...     sp.parallelize(model, "stripped")
    ... except sp.SpError as error:
    ...     print(str(error).splitlines()[0])
    there is no strategy 'stripped'
    """

    def __init__(self, found: str, *, needed: str | None = None, remedy: str | None = None) -> None:
        lines = [found]
        if needed:
            lines.append(f"  needed: {needed}")
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))


class StrategyError(SpError):
    """The strategy, mesh or option asked for does not exist or does not fit this world.

    >>> sp.parallelize(model, mesh="sp")
    Traceback (most recent call last):
        ...
    sp.errors.StrategyError: mesh is a str
      needed: a DeviceMesh, process groups or None
    """


class InputError(SpError):
    """The call's arguments cannot be spread over this world.

    >>> try:
    ...     sp.estimate(llama, 3, 8, "h100")
    ... except sp.InputError as error:
    ...     print(error)
    3 tokens for 8 ranks
      needed: at least one token for each rank
    """


class RankMismatchError(SpError):
    """Ranks of one group disagree about program or inputs; raised on every rank.

    >>> def train(group):
    ...     try:
    ...         sp.parallelize(model, mesh=group)(ids + group.rank())
    ...     except sp.RankMismatchError as error:
    ...         return str(error).partition(":")[0]
    >>> sp.testing.run_ranks(2, train)
    ['the ranks disagree about the contents of the inputs', 'the ranks disagree about the contents of the inputs']
    """


class RankLostError(SpError):
    """An exchange between ranks did not come to its end: one of them died, failed or is late.

    `ranks` holds those to look at, as the whole job calls them.  What the backend said is the `__cause__`.

    >>> try:
    ...     loss = pmodel(ids, labels=ids).loss
    ... except sp.RankLostError as error:
    ...     print("look at", error.ranks, "and go on from the last checkpoint")
    """

    def __init__(
        self, found: str, *, needed: str | None = None, remedy: str | None = None, ranks: Sequence[int] = ()
    ) -> None:
        self.ranks = tuple(ranks)
        super().__init__(found, needed=needed, remedy=remedy)

    def during(self, what: str) -> RankLostError:
        """The same, and what the exchange was a part of; outer parts last.

        >>> error = sp.RankLostError("rank 1 is lost\\n  this rank, 0: waited 0.1 s", ranks=[1])
        >>> print(error.during("step 7"))
        rank 1 is lost
          during: step 7
          this rank, 0: waited 0.1 s
        """
        before, mark, after = str(self).rpartition("\n  this rank, ")
        text = f"{before}\n  during: {what}{mark}{after}" if mark else str(self)
        return type(self)(text, ranks=self.ranks)


class RuleError(SpError):
    """A placement rule that was to be registered cannot be read, is not true, or is one too many.

    >>> try:
    ...     sp.register_rule("mylib::thrice", "pointwise", trusted=True)
    ... except sp.RuleError as error:
    ...     print(error)
    there is no such op
      needed: an op of torch.library, or its name as in 'mylib::scaled_norm'
      remedy: a Python function is traced through: make it an op with torch.library.custom_op
    """


class ValidationError(SpError):
    """The transformed program was run beside the plain model and does not compute the same, or fails.

    >>> linear = sp.parallelize(nn.Linear(4, 4), compile=False, validate=True)
    >>> try:
    ...     out = linear(torch.ones(1, 8, 4))
    ... except sp.ValidationError:
    ...     print("do not train with it")
    """


@dataclass(frozen=True)
class Refusal:
    """One place of a model that `sp` cannot prove, and so will not run.

    node: the graph node, as printed.  source: the user's line.
    why: which dim, which placement, through which values.
    more: how many others like it, from the same line (of other layers), stand for it.
    """

    node: str
    source: str
    why: str
    remedy: str
    more: int = 0

    def __str__(self) -> str:
        more = f"  (and {self.more} more from this line)" if self.more else ""
        return f"{self.node}\n    at:     {self.source}{more}\n    why:    {self.why}\n    remedy: {self.remedy}"


class UnsupportedModelError(SpError):
    """The model cannot be captured or transformed exactly.

        >>> class Mixes(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x).transpose(1, 2).reshape(x.shape)
        >>> try:
        ...     report = sp.inspect(Mixes(4, 4), (torch.ones(1, 8, 4),))
        ... except sp.UnsupportedModelError as error:
        ...     print(error.refusals[0].why)
        it reshapes …

    `refusals` holds every reason, not only the first.
    """

    def __init__(
        self,
        found: str,
        *,
        refusals: Sequence[Refusal] = (),
        needed: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.refusals = tuple(refusals)
        listed = "".join(f"\n  {number}. {refusal}" for number, refusal in enumerate(self.refusals, 1))
        super().__init__(found + listed, needed=needed, remedy=remedy)
