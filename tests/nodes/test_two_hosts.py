"""Two hosts, two ranks on each: training equals one process, and what crosses the link is what the plans say."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nodes.crossing import STEPS, STRATEGIES, TRAINED, batch, make
from tests.nodes.hosts import Host, NotPermittedError, slow_down, torchrun, two_hosts
from tests.nodes.plans import bytes_that_cross, crossings

RANKS = 2  # of each host
LENGTH = 4096
# Headers and acknowledgements; what ranks say before a call and at a barrier.
OVERHEAD, TALK = 1.05, 60_000


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        with two_hosts() as made:
            yield made
    except NotPermittedError as error:
        pytest.skip(f"no hosts can be made here: {error}")


LISTEN = """
import socket
with socket.create_server(("", 29401)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    print(sum(iter(lambda: len(connection.recv(1 << 16)), 0)))
"""
SAY = """
import socket, sys
with socket.create_connection((sys.argv[1], 29401), timeout=10) as connection:
    connection.sendall(bytes(1_000_000))
"""


def say_a_megabyte(first: Host, second: Host) -> float:
    """Seconds until the second host has heard all that the first says."""
    listening = second.command(sys.executable, "-c", LISTEN)
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        begin = time.monotonic()
        subprocess.run(first.command(sys.executable, "-c", SAY, second.address), timeout=30, check=True)
        assert server.stdout.readline() == "1000000\n"
        return time.monotonic() - begin


def test_hosts_reach_each_other_and_nothing_else(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    before = first.sent()
    say_a_megabyte(first, second)
    assert 1_000_000 < first.sent() - before < 1_000_000 * OVERHEAD + TALK
    elsewhere = first.command(sys.executable, "-c", SAY, "192.0.2.1")
    assert "unreachable" in subprocess.run(elsewhere, capture_output=True, text=True, timeout=30, check=False).stderr


def test_a_slow_link_is_slow(hosts: tuple[Host, Host]) -> None:
    with two_hosts() as slow:
        try:
            slow_down(slow, "8mbit")
        except NotPermittedError as error:
            pytest.skip(f"no link can be made slow here: {error}")
        assert say_a_megabyte(*slow) > 0.9


def test_hosts_and_what_runs_on_them_go_when_a_test_fails(hosts: tuple[Host, Host]) -> None:
    made, processes = list[Host](), list[subprocess.Popen[bytes]]()

    def fail() -> None:
        with two_hosts() as others:
            made.extend(others)
            processes.append(subprocess.Popen(others[0].command("sleep", "60")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert processes[0].wait(5) < 0
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert hosts[0].namespace in left
    assert not any(host.namespace in left for host in made)


def test_where_no_namespaces_are_to_be_had_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(NotPermittedError, match="there is no `ip` here: it belongs to iproute2"), two_hosts():
        pass


def test_a_ring_of_rings_crosses_once_by_the_plan() -> None:
    """Every host must get the blocks of all others; a ring over all ranks brings it some of them twice."""
    for count, ranks in ((2, 2), (2, 8), (4, 2), (3, 5)):
        world = count * ranks
        assert crossings(world, ranks, ranks) == world - ranks
        assert crossings(world, ranks, None) == world - 1


@pytest.fixture(scope="module")
def found(hosts: tuple[Host, Host], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the ranks have found, all in one start of torchrun."""
    out = tmp_path_factory.mktemp("crossing") / "found.json"
    options = ["--length", str(LENGTH), "--train", *TRAINED, "--out", out]
    torchrun(hosts, RANKS, Path(__file__).with_name("crossing.py"), *options, timeout_s=240)
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_crosses_the_link_is_what_the_plan_says(found: dict[str, Any], strategy: str) -> None:
    for sent in found["attention"][strategy]:
        for measured, again, backward in zip(sent["bytes"], sent["resent"], (False, True), strict=True):
            right = bytes_that_cross(strategy, LENGTH, 2, RANKS, backward)
            assert right <= measured < right * OVERHEAD + TALK + again


@pytest.mark.slow
@pytest.mark.parametrize("way", TRAINED)
def test_training_equals_one_process(found: dict[str, Any], way: str) -> None:
    model, losses = make(), list[list[float]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        each = [model(rows, labels=rows).loss for rows in batch().chunk(2)]
        optimizer.zero_grad()
        torch.stack(each).mean().backward()
        optimizer.step()
        losses.append([loss.item() for loss in each])
    for rank, mine in enumerate(found["losses"][way]):
        right = [step[rank // RANKS] if way == "fsdp" else sum(step) / 2 for step in losses]
        assert mine == pytest.approx(right, rel=1e-12)


def test_nobody_is_left_when_time_is_up(hosts: tuple[Host, Host]) -> None:
    with pytest.raises(RuntimeError, match=r"of torchrun on 2 hosts, exit codes are \[None, None\]"):
        torchrun(hosts, RANKS, Path(__file__).with_name("crossing.py"), timeout_s=0)
    assert [host.processes() for host in hosts] == [[], []]


@pytest.mark.slow
def test_ranks_that_fail_end_all(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    options = ["--strategies", "no-such-strategy", "--out", tmp_path / "found.json"]
    with pytest.raises(RuntimeError, match="KeyError: 'no-such-strategy'"):
        torchrun(hosts, RANKS, Path(__file__).with_name("crossing.py"), *options, timeout_s=200)
    assert [host.processes() for host in hosts] == [[], []]
