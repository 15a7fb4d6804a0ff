"""Two hosts on one machine: network namespaces of Linux, joined by a virtual link that counts bytes.

    with two_hosts() as hosts:
        torchrun(hosts, 2, "examples/train_sharded.py", "--steps", "3", timeout_s=120)

Each has an address, an interface called `veth0` with counters of its own, and reaches nothing but the other.  It takes
iproute2 and the right to make namespaces: root, or a container with CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

ROOT = Path(__file__).parents[2]
LINK = "veth0"
_REFUSALS = (
    "not permitted",
    "Permission denied",
    "not supported",
    "Unknown device type",
    "kind is unknown",
    "Read-only file system",
)
_PATIENCE_S = 10.0  # for torchrun to end its ranks


class NotPermittedError(RuntimeError):
    """This machine gives its processes no namespaces; the message says what refused."""


@dataclass(frozen=True)
class Host:
    """namespace: its name.  address: of its end of the link."""

    namespace: str
    address: str

    def command(self, *words: str | Path) -> list[str]:
        """`words`, to be run on this host."""
        return ["ip", "netns", "exec", self.namespace, *map(str, words)]

    def sent(self) -> int:
        """Bytes that have left over the link, since there is one."""
        return int(_run(*self.command("cat", f"/sys/class/net/{LINK}/statistics/tx_bytes")))

    def processes(self) -> list[int]:
        """The ids of all processes on it: nobody starts any there but this process."""
        return [int(word) for word in _run("ip", "netns", "pids", self.namespace).split()]


@contextlib.contextmanager
def two_hosts() -> Generator[tuple[Host, Host]]:
    """Both are gone when the block ends, with whatever still runs on them.

    NotPermittedError: this machine does not let its processes make such hosts."""
    name = f"sp-{os.getpid()}-{uuid4().hex[:6]}"
    hosts = Host(f"{name}-a", "10.77.0.1"), Host(f"{name}-b", "10.77.0.2")
    with contextlib.ExitStack() as removals:
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
            removals.callback(_remove, host)
        first, second = (host.namespace for host in hosts)
        _run("ip", "link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK, "netns", second)
        for host in hosts:
            _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", LINK)
            for interface in (LINK, "lo"):
                _run("ip", "-n", host.namespace, "link", "set", interface, "up")
            host.sent()  # raises here, and not in the middle of a test
        yield hosts


def slow_down(hosts: Sequence[Host], rate: str) -> None:
    """Let the link carry no more than `rate` ("100mbit") in either direction.

    NotPermittedError: the kernel was built without the token bucket that does it."""
    for host in hosts:
        bucket = ("tbf", "rate", rate, "burst", "64kb", "limit", "256mb")
        _run("tc", "-n", host.namespace, "qdisc", "replace", "dev", LINK, "root", *bucket)


def torchrun(hosts: Sequence[Host], ranks: int, *words: str | Path, timeout_s: float) -> list[str]:
    """Run a script on `ranks` processes of each host, which meet over the link; what each host has printed.

    RuntimeError with all that was printed where one fails or time is up.  No process outlives the call."""
    with TemporaryDirectory(prefix="sp-hosts-") as folder:
        outs = [Path(folder, f"{number}.out") for number in range(len(hosts))]
        errs = [Path(folder, f"{number}.err") for number in range(len(hosts))]
        agents = [
            _start(_launcher(hosts, number, ranks, words), out, err)
            for number, (out, err) in enumerate(zip(outs, errs, strict=True))
        ]
        try:
            codes = _wait(agents, time.monotonic() + timeout_s)
        finally:
            _end(agents, hosts)
        if codes != [0] * len(hosts):
            text = "\n".join(file.read_text() for file in (*outs, *errs))
            raise RuntimeError(f"of torchrun on {len(hosts)} hosts, exit codes are {codes}\n{text}")
        return [out.read_text() for out in outs]


def _launcher(hosts: Sequence[Host], number: int, ranks: int, words: Sequence[str | Path]) -> list[str]:
    """The line for host `number`.  Whether it is the one where all meet it cannot tell: names lead nowhere here."""
    host, meeting = hosts[number], hosts[0]
    return host.command(
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(hosts)), "--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{meeting.address}:29400", "--rdzv-id", meeting.namespace),
        *("--rdzv-conf", f"is_host={int(number == 0)},join_timeout=60", "--local-addr", host.address),
        *words,
    )


def _start(command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[bytes]:
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(command, env={**os.environ, **settings}, cwd=ROOT, stdout=stdout, stderr=stderr)


def _wait(agents: Sequence[subprocess.Popen[bytes]], deadline: float) -> list[int | None]:
    """Exit codes, None of those that run on; until all have ended, one has failed or time is up."""
    while True:
        codes = [agent.poll() for agent in agents]
        if None not in codes or any(codes) or time.monotonic() > deadline:
            return codes
        time.sleep(0.05)


def _end(agents: Sequence[subprocess.Popen[bytes]], hosts: Sequence[Host]) -> None:
    for agent in agents:
        agent.terminate()  # torchrun ends its ranks then
    for agent in agents:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_PATIENCE_S)
    for host in hosts:
        _end_all(host)
    for agent in agents:
        agent.wait()


def _end_all(host: Host) -> None:
    for process in host.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _remove(host: Host) -> None:
    _end_all(host)
    _run("ip", "netns", "delete", host.namespace)


def _run(*command: str) -> str:
    """What the command prints."""
    if shutil.which(command[0]) is None:
        raise NotPermittedError(f"there is no `{command[0]}` here: it belongs to iproute2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return done.stdout
    message = f"{' '.join(command)}: {done.stderr.strip()}"
    raise (NotPermittedError if any(sign in message for sign in _REFUSALS) else RuntimeError)(message)
