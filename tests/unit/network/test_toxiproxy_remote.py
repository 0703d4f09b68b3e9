"""A server that is not ours: asked from a loop, and ended before its time."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_harness.loop_thread import LoopThread
from elastic_harness.toxiproxy.client import ToxiproxyClient, ToxiproxyError
from elastic_harness.toxiproxy.remote import RemoteToxiproxy

from pytest_elastic.errors import ElasticError

WAIT_S = 60.0

# What Shopify's command line starts, and a file that tells who it is.
PROGRAM = """#!/bin/sh
echo $$ > {folder}/pid
exec {python} -m pytest_elastic toxiproxy --host "$2" --port "$4"
"""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteToxiproxy]:
    """Lend a server of a program of its own."""
    program = tmp_path / "toxiproxy-server"
    program.write_text(PROGRAM.format(folder=tmp_path, python=sys.executable))
    program.chmod(0o755)
    thread = LoopThread()
    thread.start()
    made = RemoteToxiproxy(thread.loop, program=str(program))
    yield made
    made.close()
    made._thread.join(WAIT_S)  # what it still holds would be garbage too late for the leak check
    thread.stop()


def ask(remote: RemoteToxiproxy, work: Callable[[ToxiproxyClient], object]) -> object:
    """Return what comes of one call."""
    answers: queue.Queue[object] = queue.Queue()
    remote.call(work, answers.put)
    return answers.get(timeout=WAIT_S)


def test_a_server_that_ends_is_named_once_and_started_again(
    remote: RemoteToxiproxy, tmp_path: Path
) -> None:
    """The call that finds it gone says how it ended; the jobs after it have a new server."""
    assert ask(remote, lambda client: list(client.proxies())) == []
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    outcome = ask(remote, lambda client: client.create("127.0.0.1:1", "p"))
    assert isinstance(outcome, ElasticError)
    assert f"{tmp_path}/toxiproxy-server was killed by SIGKILL (9)" in str(outcome)
    assert ask(remote, lambda client: list(client.proxies())) == []


def test_a_server_that_refuses_is_not_one_that_ended(remote: RemoteToxiproxy) -> None:
    """Its words are the error's."""
    outcome = ask(remote, lambda client: client.create("", "p"))
    assert isinstance(outcome, ToxiproxyError)
    assert outcome.reason == "missing required field: upstream"


def test_where_nobody_listens_the_system_is_quoted_and_not_the_http_library() -> None:
    """One clause, not the names of its classes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ToxiproxyError) as error:
        ToxiproxyClient(url).proxies()
    assert str(error.value) == f"GET {url}/proxies: Connection refused"
