"""`failing_together`: what one rank raises, all others hear of at once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from sp.mesh import Mesh, bind_mesh
from sp.runtime import faults
from sp.runtime.world import find_world


@contextmanager
def failing_together(mesh: Mesh = None, during: str = "a step") -> Generator[None]:
    """Around a step of training, or a checkpoint: where one rank raises, the others do not wait for their timeout.

        >>> optimizer = torch.optim.SGD(pmodel.parameters(), 1e-3)
        >>> with sp.failing_together():
        ...     pmodel(ids, labels=ids).loss.backward()
        ...     optimizer.step()

    Calls of a parallelized model do so by themselves.  Around a step it takes in what is outside of these: backward,
    the loader, what FSDP and checkpoints exchange, whose errors become a RankLostError too.

    mesh: as `sp.parallelize` takes it; the whole job unless told otherwise.  during: for the error.

    The rank that fails raises its own error, the others RankLostError with its text.  gloo groups are closed by it, all
    of this process: restart, or make them anew.  Where all ranks fail alike, groups stay as they are."""
    with faults.failing_together(find_world(bind_mesh(None, mesh)[1]), during):
        yield
