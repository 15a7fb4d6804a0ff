"""A link that is cut: both sides end with an error that names the other, in time."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.faults.cut import TIMEOUT_S
from tests.nodes.hosts import LINK, Host, NotPermittedError, torchrun, two_hosts


def cut_when_ready(host: Host, folder: Path) -> None:
    end = time.monotonic() + 200
    while time.monotonic() < end and not all((folder / f"ready-{rank}").exists() for rank in range(2)):
        time.sleep(0.05)
    subprocess.run(["ip", "-n", host.namespace, "link", "set", LINK, "down"], check=True)
    (folder / "cut").touch()
    while time.monotonic() < end and not all((folder / f"found-{rank}").exists() for rank in range(2)):
        time.sleep(0.05)
    subprocess.run(["ip", "-n", host.namespace, "link", "set", LINK, "up"], check=False)  # for torchrun to end


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_sides_of_a_link_that_is_cut_name_the_other(tmp_path: Path) -> None:
    try:
        with two_hosts() as hosts:
            cutting = threading.Thread(target=cut_when_ready, args=(hosts[1], tmp_path), daemon=True)
            cutting.start()
            script = Path(__file__).with_name("cut.py")
            try:  # whether torchrun's own agents survive the cut is theirs
                torchrun(hosts, 1, script, "--out", tmp_path, timeout_s=240)
            except RuntimeError as error:
                assert (tmp_path / "found-1").exists(), error  # noqa: PT017
            cutting.join()
    except NotPermittedError as error:
        pytest.skip(f"no hosts can be made here: {error}")
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found["ranks"] == [1 - rank]
        assert found["text"].startswith(f"rank {1 - rank} is late or lost\n")
        assert "what all ranks say before a call" in found["text"]
        assert found["seconds"] < TIMEOUT_S + 4  # a note that nobody takes is waited for, and then those of the other
