"""What a reference on the command line leads to.  Whatever goes wrong on the way is said in a line: other people's code
runs here, in files, in modules and in what makes a model."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sp.errors import InputError, SpError


def find(reference: str) -> Any:
    """What `module:name` or `file.py:name` names.  InputError if it names nothing."""
    place, _, name = reference.partition(":")
    if not name or not place:
        raise wrong(reference, "names no model")
    with told(reference, "cannot be loaded"):
        try:
            found = _from_file(Path(place)) if place.endswith(".py") else _from_path(place)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, OSError) as error:
            raise wrong(reference, f"is not found: {error}") from error
    return found


def facts_of(reference: str) -> dict[str, Any]:
    """What a JSON file holds.  InputError if it cannot be read, or holds no object."""
    try:
        facts = json.loads(Path(reference).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise wrong(reference, f"cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise wrong(reference, f"holds a {type(facts).__name__}, no configuration")
    return facts


@contextmanager
def told(reference: str, what: str) -> Generator[None]:
    """Whatever is raised inside, as an InputError: `<reference> <what>: its class, what it says and where`."""
    try:
        yield
    except SpError:
        raise
    except (Exception, SystemExit) as error:  # a file may do anything
        said = " ".join(str(error).split())
        frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_file()]
        at = "".join(f" at {Path(each.filename).name}:{each.lineno}" for each in frames[1:][-1:])  # the first is here
        raise wrong(reference, f"{what}: {type(error).__name__}: {said}{at}") from error


def wrong(reference: str, why: str) -> InputError:
    return InputError(
        f"{reference} {why}",
        remedy="module:name or file.py:name of a model or of what makes one, hf:TYPE, or a config.json of transformers",
    )


def _from_path(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    return importlib.import_module(name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))  # as `python file.py` does
    spec.loader.exec_module(module)
    return module
