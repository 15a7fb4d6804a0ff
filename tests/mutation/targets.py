"""The files that are mutated, and the tests that are to see it."""

from dataclasses import dataclass

# Worlds of up to five ranks, and nothing of what the tests plant themselves.
_SMALL = " and ".join(f"not [{world}-" for world in range(6, 17)) + " and not planted"
_PLANS = ("tests/test_tile.py", "tests/test_plan.py", "tests/test_steps.py", "-k", _SMALL)
_FOUND = ("tests/passes/test_found.py", "tests/passes/test_place.py")
_PLACE = (*_FOUND, "tests/passes/test_refusals.py", "tests/passes/test_localize.py")
_MERGE = ("tests/runtime/test_merge.py", "-k", "not compiled")


@dataclass(frozen=True)
class Target:
    """path: of a file.  tests: arguments of pytest."""

    path: str
    tests: tuple[str, ...]


TARGETS = (
    Target("sp/layout.py", ("tests/test_layout.py",)),
    Target("sp/mask.py", ("tests/test_mask.py",)),
    Target("sp/plan.py", _PLANS),
    Target("sp/tile.py", _PLANS),
    Target("sp/passes/place.py", _PLACE),
    Target("sp/passes/placements.py", ("tests/passes/test_placements.py", *_PLACE)),
    Target("sp/runtime/merge.py", _MERGE),
    Target("sp/runtime/partials.py", ("tests/runtime/test_partials.py",)),
)
