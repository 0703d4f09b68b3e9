"""The command that serves proxies, as a process."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_harness.toxiproxy.client import ToxiproxyClient, ToxiproxyError
from elastic_harness.toxiproxy.server import Toxiproxy

from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

COMMAND = (sys.executable, "-m", "pytest_elastic", "toxiproxy", "--host=127.0.0.1")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path, ending: signal.Signals) -> None:
    """It says where, begins with what its file lists, and ends with 0."""
    config = tmp_path / "proxies.json"
    config.write_text(json.dumps([{"name": "a", "upstream": "x:1", "listen": "127.0.0.1:0"}]))
    with subprocess.Popen(
        [*COMMAND, "--port=0", f"--config={config}"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            client = ToxiproxyClient(url)
            assert list(client.proxies()) == ["a"]
            process.send_signal(ending)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not client.running()


def test_a_port_that_is_taken_is_the_users_to_change(tmp_path: Path) -> None:
    """One line, what to try, and the exit code of a wrong option."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, f"--port={port}"], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"pytest-elastic toxiproxy: cannot serve the Toxiproxy API at 127.0.0.1:{port}: listen tcp "
        f"127.0.0.1:{port}: bind: address already in use\n"
        "Take another --port (0 picks one that is free), or another --host: an address of this "
        "machine, such as 127.0.0.1 (0.0.0.0 for all).\n"
    )
    bad = tmp_path / "bad.json"
    bad.write_text("[{}]")
    refused = subprocess.run(
        [*COMMAND, "--port=0", f"--config={bad}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert refused.returncode == 2
    assert "missing required field: name at proxy 1" in refused.stderr


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "listen tcp 192.0.2.1:0: bind: cannot assign requested address"),
        ("no-such-host.invalid", "listen tcp: lookup no-such-host.invalid: no such host"),
        ("localhost:8474", "listen tcp: address [localhost:8474]:0: "),
    ],
)
def test_a_host_that_is_not_ours_is_the_users_to_change(host: str, why: str) -> None:
    """What is wrong with it is said."""
    loop = Loop()
    with pytest.raises(UsageError) as raised:
        Toxiproxy(loop, host=host).start()
    loop.close()
    assert why in str(raised.value)
    assert "Take another" in str(raised.value)


def test_a_port_that_nobody_has_is_the_users_to_change() -> None:
    """The host is well then."""
    loop = Loop()
    with pytest.raises(UsageError, match=r"out of range 0-65535\nTake another --port"):
        Toxiproxy(loop, host="127.0.0.1", port=65536).start()
    loop.close()


def test_a_server_without_descriptors_waits_for_some(tmp_path: Path) -> None:
    """It drops what it cannot serve, and goes on when there are descriptors again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as upstream,
        subprocess.Popen([*COMMAND, "--port=0"], stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            client = ToxiproxyClient(process.stdout.readline().split()[-1])
            proxy = client.create(f"127.0.0.1:{upstream.getsockname()[1]}", "p")
            odd = client.create("no-such-host.invalid:1", "odd\x00name")
            odd.update(upstream="no-such\x00host:1")
            used = len(os.listdir(f"/proc/{process.pid}/fd"))
            limits = (used + 5, used + 5)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
            with contextlib.ExitStack() as opened:
                for address in [proxy.address, odd.address] * 8:
                    opened.enter_context(socket.create_connection(address, 5.0))
            upstream.close()  # which ends those of them that got so far
            client.timeout_s = 20.0
            assert sorted(client.proxies()) == ["odd\x00name", "p"]
            with pytest.raises(ToxiproxyError, match="too many open files"):
                client.populate(
                    [{"name": f"p{n}", "upstream": "x", "listen": "127.0.0.1:0"} for n in range(9)]
                )
            assert process.poll() is None
        finally:
            process.kill()
