"""Errors of ranks in processes of their own, as the command line shows those of its own."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from sp.cli.main import Refused
from sp.testing import RankFailedError

# The last lines of a rank's traceback, where it ends by an SpError.
_OURS = re.compile(r"^sp\.errors\.\w+: (.*)", re.DOTALL | re.MULTILINE)


@contextmanager
def of_ranks(color: bool | None) -> Generator[None]:
    """An SpError of a rank in two lines; any other error of a rank with all of its traceback."""
    try:
        yield
    except RankFailedError as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        raise Refused(found[1], color) from error
