"""The compiler: `capture` makes a Program, the passes of `pipeline` turn it into what every rank runs."""

from __future__ import annotations

from sp.passes.attention import RewriteAttention
from sp.passes.autocast import Autocast
from sp.passes.canonical import Canonical
from sp.passes.decompose import Decompose
from sp.passes.flex import Flex
from sp.passes.functionalize import Functionalize
from sp.passes.local_gradients import LocalGradients
from sp.passes.localize import Localize
from sp.passes.manager import Pass
from sp.passes.no_grad import Detach
from sp.passes.noise import SeedNoise
from sp.passes.normalize import Normalize
from sp.passes.output_forms import Drop, OutputForm
from sp.passes.overlap import Overlap
from sp.passes.place import Place
from sp.passes.recognize import Recognize
from sp.passes.reduce import Reduce
from sp.passes.regions import Inline
from sp.passes.verify import Verify


def preparation(outputs: OutputForm = "global") -> tuple[Pass, ...]:
    """Captured graph → plain lines: what an op computes depends on its operands alone, and nothing changes them."""
    return (
        Drop(outputs),  # first: what nobody wants is neither judged nor refused
        Inline(),  # before all else: every later pass sees one graph, and each op's modes as a note on it
        Flex(),  # before all that judges ops one by one: what is inside of a flex_attention is not theirs to see
        Autocast(),  # before functionalize: changes in place are cast in other ways than their functional forms
        Functionalize(),  # before detach: a value made under no_grad may be changed with gradients later
        Detach(),  # the last to read modes
        Normalize(),  # no later pass should know of assertions, idle casts and sizes read in odd places
        Canonical(),  # every later pass works in one order, on all ranks; only now is order free, values being values
    )


def rewriting(kernel: str | None = None) -> tuple[Pass, ...]:
    """Plain lines → every attention with its mask.  The first passes that read the program's strategy."""
    return (
        Recognize(),  # before noise: dropped weights of an attention are refused by that name
        SeedNoise(),  # before anything is placed: noise is a value like others
        RewriteAttention(kernel),  # before place: proves masks on the global graph, and lets them die unplaced
    )


def distribution(
    *, outputs: OutputForm = "global", kernel: str | None = None, sync_gradients: bool = True, averaged: bool = False
) -> tuple[Pass, ...]:
    """Plain lines → what every rank runs, under the program's strategy."""
    return (
        *rewriting(kernel),
        Decompose(),  # before reduce: some of what it writes are averages
        Reduce(),  # before place: averages become sums, the only thing that place lets cross the ranks
        Place(),  # judges the final global ops; refuses what no rule can prove
        Localize(outputs),  # needs every placement; from here on shapes are local
        *((Overlap(),) if sync_gradients else ()),  # after localize: groups what that has inserted
        Verify(),  # last of these: reads the result like a stranger and trusts no pass before it
        # Behind verify, which wants every gradient summed.
        *(() if sync_gradients else (LocalGradients(averaged=averaged),)),
    )


def pipeline(*, outputs: OutputForm = "global", kernel: str | None = None) -> tuple[Pass, ...]:
    """The passes in their order, each with the reason for its place."""
    return (*preparation(outputs), *distribution(outputs=outputs, kernel=kernel))
