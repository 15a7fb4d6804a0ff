"""Mutants tried by forks of one pytest that has imported and collected everything already.

In the fork, functions get the mutant's code, and the tests run, those first that are quickest, until one fails.  So a
mutant costs as long as it lives: hundredths of a second for most.
"""

import functools
import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

import pytest
from _pytest.main import pytest_runtestloop

from tests.mutation.mutants import Mutant

ALIVE, KILLED, BROKEN = 0, 1, 3
_MEMORY = 6 << 30  # bytes that the tests of a mutant may take on top
_PATIENCE_S = 900  # of the clock; other work on the machine may be long
Key = tuple[str, int]


@dataclass
class Trials:
    """A plugin of pytest.  In place of the tests' own run it tries the mutants; `alive` are those that no test sees.

    mutants: by their numbers.  log: what the tests of the latest mutant said; beside it, in a file that ends in .tried,
    is what became of each mutant up to it."""

    path: Path
    mutants: Mapping[int, Mutant]
    log: Path
    alive: list[Mutant] = field(default_factory=list[Mutant])
    tests: int = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.tests = len(session.items)
        limit = self._order(session)
        functions, caches = [*_functions(self.path)], [*_caches()]
        assert functions, f"no test imports {self.path}"
        gc.freeze()  # what is there already is not copied into each fork
        for number, mutant in self.mutants.items():
            start = time.monotonic()
            codes = dict(_codes(compile(mutant.tree, str(self.path), "exec", dont_inherit=True)))
            ended = self._fork(session, lambda codes=codes: _plant(functions, caches, codes), limit)
            if ended == ALIVE:
                self.alive.append(mutant)
            self._note(number, mutant, ended, time.monotonic() - start)
        gc.unfreeze()  # or the next file would find no functions
        return True

    def _note(self, number: int, mutant: Mutant, ended: int, seconds: float) -> None:
        with self.log.with_suffix(".tried").open("a") as file:
            file.write(
                f"{number:4} {'alive ' if ended == ALIVE else 'killed'} {seconds:6.1f} s  {self.path.name} {mutant}\n"
            )

    def _order(self, session: pytest.Session) -> int:
        """The quickest tests first; the seconds that a mutant may take."""
        times, start = self.log.with_suffix(".times"), time.monotonic()
        times.unlink(missing_ok=True)
        if self._fork(session, lambda: session.config.pluginmanager.register(_Times(times)), _PATIENCE_S) != ALIVE:
            raise pytest.UsageError(f"the tests fail without any mutant, see {self.log}")
        took = dict[str, float]()
        for line in times.read_text().splitlines():
            seconds, name = line.split(" ", 1)
            took[name] = took.get(name, 0.0) + float(seconds)
        session.items.sort(key=lambda item: took[item.nodeid])
        return int(3 * (time.monotonic() - start) + 10)

    def _fork(self, session: pytest.Session, prepare: Callable[[], object], limit_s: int) -> int:
        child = os.fork()
        if not child:
            _run(session, prepare, limit_s, self.log)
        deadline = time.monotonic() + _PATIENCE_S
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.002)
        code = os.waitstatus_to_exitcode(ended[1])
        if code == BROKEN:
            raise pytest.UsageError(f"the mutant could not be tried, see {self.log}")
        return ALIVE if code == ALIVE else KILLED


def _run(session: pytest.Session, prepare: Callable[[], object], limit_s: int, log: Path) -> NoReturn:
    """In the fork.  limit_s: of the processor."""
    code = BROKEN
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
        prepare()
        code = KILLED
        pytest_runtestloop(session)
        code = KILLED if session.testsfailed else ALIVE
    except session.Failed:  # the first failure ends the run
        pass
    except BaseException:  # noqa: BLE001  (a fork must not go on as if it were the parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class _Times:
    path: Path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with self.path.open("a") as file:
            file.write(f"{report.duration} {report.nodeid}\n")


def _functions(path: Path) -> Iterator[FunctionType]:
    """Every function that was made from a file: those of classes, lambdas in tables, and what caches wrap."""
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == str(path):
            yield thing


def _caches() -> Iterator["functools._lru_cache_wrapper[object]"]:
    return (thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper)


def _codes(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield _key(constant), constant
            yield from _codes(constant)


def _key(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


def _plant(
    functions: Sequence[FunctionType],
    caches: Sequence["functools._lru_cache_wrapper[object]"],
    codes: dict[Key, CodeType],
) -> None:
    for function in functions:
        function.__code__ = codes[_key(function.__code__)]
    for cache in caches:
        cache.cache_clear()
