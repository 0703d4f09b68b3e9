"""Stores are hosted and asked in a process of their own, and every call ends in time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_elastic.workers.messages import (
    CallStore,
    GroupGone,
    StartGroup,
    StoreAnswered,
    StoreServiceLost,
)
from pytest_elastic.workers.process_tree import children_of, start_time
from tests.integration.small_agent import AgentProcess, python_worker
from tests.integration.stopped import stop

_ids = itertools.count(1)


@pytest.fixture(scope="module", params=[True, False], ids=["warm", "cold"])
def agent(request: pytest.FixtureRequest) -> Iterator[AgentProcess]:
    """An agent whose keeper, and so its service, has all of torch, or one with its library only."""
    with AgentProcess(warm=request.param) as agent:
        open_store(agent)  # the service is there from the first call on
        yield agent


def ask(agent: AgentProcess, call: str, **arguments: object) -> StoreAnswered:
    """Make a call and wait for its answer."""
    order = CallStore(id=next(_ids), call=call, arguments=arguments)
    agent.send(order)
    answer = agent.wait_for(StoreAnswered)
    assert answer.id == order.id
    return answer


def open_store(agent: AgentProcess) -> int:
    """Open a worker store; return its port."""
    answer = ask(agent, "open", host="127.0.0.1")
    assert answer.error == ""
    assert isinstance(answer.value, int)
    return answer.value


def ask_for_missing_key(agent: AgentProcess, port: int) -> tuple[float, str]:
    """Fetch `k` from a store that lacks it; return the time that was given, and the error.

    A busy machine may not serve the store in a short time, which is another error: it is asked
    again with twice the time.
    """
    for timeout_s in (0.5, 1, 2, 4, 8, 16, 30):
        answer = ask(agent, "fetch", host="127.0.0.1", port=port, key="k", timeout_s=timeout_s)
        if "no store answered" not in answer.error:
            break
    return timeout_s, answer.error


def test_what_is_published_is_fetched(agent: AgentProcess) -> None:
    """Set on one connection, read on another, with any text as value."""
    port = open_store(agent)
    where = {"host": "127.0.0.1", "port": port}
    assert ask(agent, "publish", **where, key="k", value="ünï\n{}").error == ""
    assert ask(agent, "fetch", **where, key="k", timeout_s=30).value == "ünï\n{}"


def test_a_fetch_waits_for_its_key(agent: AgentProcess) -> None:
    """A key that comes within the time given is the answer; others are not held up meanwhile."""
    port = open_store(agent)
    where = {"host": "127.0.0.1", "port": port}
    fetch = CallStore(id=next(_ids), call="fetch", arguments={**where, "key": "k", "timeout_s": 30})
    publish = CallStore(
        id=next(_ids), call="publish", arguments={**where, "key": "k", "value": "v"}
    )
    agent.send(fetch)
    agent.send(publish)
    # Who waits is answered by a thread of its own, perhaps first.
    answers = {each.id: each for each in (agent.wait_for(StoreAnswered) for _ in range(2))}
    assert answers == {
        fetch.id: StoreAnswered(id=fetch.id, value="v"),
        publish.id: StoreAnswered(id=publish.id),
    }


def test_a_key_that_does_not_come_is_an_error(agent: AgentProcess) -> None:
    """The text names the store, the key and the time."""
    port = open_store(agent)
    timeout_s, error = ask_for_missing_key(agent, port)
    assert error == f"the store at 127.0.0.1:{port} has no key 'k' after {timeout_s:g} s"


def test_each_store_has_its_own_keys_and_its_own_port(agent: AgentProcess) -> None:
    """Nothing of one round's store is visible in the next, and ports do not repeat while open."""
    first, second = open_store(agent), open_store(agent)
    assert first != second
    ask(agent, "publish", host="127.0.0.1", port=first, key="k", value="v")
    _, error = ask_for_missing_key(agent, second)
    assert "has no key" in error


def test_a_store_listens_on_the_address_it_was_given_only(agent: AgentProcess) -> None:
    """A TCPStore knows no password: it is not offered where nobody asked for it."""
    port = open_store(agent)
    for address in ("127.0.0.2", "::1"):
        with pytest.raises(OSError, match=r"refused|assign"):
            socket.create_connection((address, port), timeout=5)


def test_a_closed_store_is_refused(agent: AgentProcess) -> None:
    """After `close` the port is free; closing twice is harmless."""
    port = open_store(agent)
    assert ask(agent, "close", port=port).error == ""
    assert ask(agent, "close", port=port).error == ""
    answer = ask(agent, "fetch", host="127.0.0.1", port=port, key="k", timeout_s=30)
    assert answer.error == f"cannot reach a store at 127.0.0.1:{port}: Connection refused"


def test_the_endpoint_is_hosted_where_its_address_is_ours(agent: AgentProcess) -> None:
    """An address of another machine is not bound, and a port that is taken says so."""
    answer = ask(agent, "host_endpoint", host="192.0.2.77", port=0, is_forced=False)
    assert answer.error == "192.0.2.77 (192.0.2.77) is not an address of this machine"
    answer = ask(agent, "host_endpoint", host="localhost", port=0, is_forced=False)
    assert answer.error == ""
    again = ask(agent, "host_endpoint", host="127.0.0.1", port=answer.value, is_forced=False)
    taken = f"cannot listen on 127.0.0.1:{answer.value}: Address already in use"
    assert (again.error, again.value) == ("", {"in_use": f"{taken}: another process listens there"})


def test_a_name_that_is_not_known_may_be_hosted_later(agent: AgentProcess) -> None:
    """That is no refusal: the name is asked for again."""
    answer = ask(agent, "host_endpoint", host="no.invalid", port=0, is_forced=False)
    assert (answer.error, "is not known here" in answer.value) == ("", True)


def test_a_forced_host_serves_whatever_the_name_resolves_to(agent: AgentProcess) -> None:
    """Behind a translated address the host does not find itself; it is told that it is one."""
    answer = ask(agent, "host_endpoint", host="192.0.2.77", port=0, is_forced=True)
    assert answer.error == ""
    ask(agent, "publish", host="127.0.0.1", port=answer.value, key="k", value="v")
    assert ask(agent, "fetch", host="127.0.0.1", port=answer.value, key="k").value == "v"


def test_a_port_with_another_service_is_told_from_a_store(agent: AgentProcess) -> None:
    """Foreign bytes are quoted (torch #62029: it waits for ever)."""
    with foreign_service(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        answer = ask(agent, "fetch", host="127.0.0.1", port=port, key="k", timeout_s=30)
    assert answer.error == (
        f"what listens at 127.0.0.1:{port} is not a torch store: it answered b'HTTP'"
    )
    with foreign_service(b"") as port:
        answer = ask(agent, "publish", host="127.0.0.1", port=port, key="k", value="v")
    assert answer.error == (
        f"what listens at 127.0.0.1:{port} is not a torch store: it closed the connection"
    )


def test_a_port_that_says_nothing_costs_its_time_and_no_more(agent: AgentProcess) -> None:
    """A frozen host accepts and is silent: the call ends in time, and others go on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        arguments = {"host": "127.0.0.1", "port": port, "key": "k", "timeout_s": 0.5}
        began = agent.loop.now()
        slow = CallStore(id=next(_ids), call="fetch", arguments=arguments)
        agent.send(slow)
        open_store(agent)
        answer = agent.wait_for(StoreAnswered)
        assert answer.id == slow.id
        assert "no store answered within 0.5 s" in answer.error
        assert agent.loop.now() - began < 30  # torch's own wait is of minutes


def test_a_frozen_store_is_not_waited_for(agent: AgentProcess, tmp_path: Path) -> None:
    """The same with a real store whose process is stopped."""
    script = (
        "from torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        where = {"host": "127.0.0.1", "port": port}
        assert ask(agent, "publish", **where, key="k", value="v").error == ""
        stop(other.pid)
        try:
            answer = ask(agent, "fetch", **where, key="k", timeout_s=0.5)
            assert "no store answered within 0.5 s" in answer.error
        finally:
            other.send_signal(signal.SIGCONT)
        assert ask(agent, "fetch", **where, key="k", timeout_s=30).value == "v"
        other.communicate("\n")


def test_an_unknown_call_is_answered(agent: AgentProcess) -> None:
    """It is our own bug, and costs an error and not the service."""
    assert "there is no store call 'nonsense'" in ask(agent, "nonsense").error


def test_stores_outlive_workers(agent: AgentProcess, tmp_path: Path) -> None:
    """A group comes and goes, and its store stays until it is closed, however long it is quiet."""
    port = open_store(agent)
    ask(agent, "publish", host="127.0.0.1", port=port, key="k", value="v")
    # Longer than a service is kept that hosts nothing.
    code = "import time; time.sleep(2.5)"
    agent.send(StartGroup(round=1, workers=[python_worker(["-c", code], cwd=str(tmp_path))]))
    agent.wait_for(GroupGone)
    agent.reports.clear()
    assert ask(agent, "fetch", host="127.0.0.1", port=port, key="k").value == "v"


def test_a_service_that_dies_is_reported_and_started_again() -> None:
    """What waits is answered, the loss is reported, and the next call finds a new service."""
    with AgentProcess(preload=[]) as agent:
        port = open_store(agent)
        (service,) = children_of(agent.keeper_pid)
        where = {"host": "127.0.0.1", "port": port}
        fetch = CallStore(
            id=next(_ids), call="fetch", arguments={**where, "key": "k", "timeout_s": 30}
        )
        agent.send(fetch)
        # Answered after the fetch has been passed on, for orders keep their order.
        ask(agent, "publish", **where, key="other", value="v")
        os.kill(service, signal.SIGKILL)
        answer = agent.wait_for(StoreAnswered)
        assert answer == StoreAnswered(id=fetch.id, error="the store service ended with -9")
        assert agent.wait_for(StoreServiceLost).reason == "the store service ended with -9"
        open_store(agent)


def test_a_service_that_hosts_nothing_is_let_go_until_the_next_call() -> None:
    """Nothing is lost or reported by that: a node that only asked keeps no process for it."""
    with AgentProcess(preload=[]) as agent, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        answer = ask(agent, "fetch", host="127.0.0.1", port=port, key="k", timeout_s=5)
        assert "Connection refused" in answer.error
        agent.wait_until(lambda: children_of(agent.keeper_pid) == [])
        port = open_store(agent)
        assert len(children_of(agent.keeper_pid)) == 1
        assert ask(agent, "close", port=port).error == ""
        agent.wait_until(lambda: children_of(agent.keeper_pid) == [])
        assert [report for report in agent.reports if isinstance(report, StoreServiceLost)] == []


def test_a_service_of_a_node_that_is_named_in_a_registry_stays(tmp_path: Path) -> None:
    """It will be asked to renew that, seldom or often; one that was idle for less is let go."""
    where = {"path": str(tmp_path / "job.rdzv"), "run_id": "job", "timeout_s": 30}
    us = {**where, "value": '{"incarnation": "us"}', "ttl_s": 60}
    others = {**where, "value": '{"incarnation": "others"}', "ttl_s": 60}
    with AgentProcess(preload=[]) as agent, AgentProcess(preload=[]) as other:
        won = ask(agent, "file_campaign", **us).value
        assert won["is_won"]
        (service,) = children_of(agent.keeper_pid)
        assert not ask(other, "file_campaign", **others).value["is_won"]
        other.wait_until(lambda: children_of(other.keeper_pid) == [])
        assert ask(agent, "file_renew", **{**us, **won}).value == 60
        assert children_of(agent.keeper_pid) == [service]
        assert ask(agent, "file_resign", **{**us, **won}).error == ""
        agent.wait_until(lambda: children_of(agent.keeper_pid) == [])


def test_a_cold_keeper_has_a_service_too() -> None:
    """It is executed then, and ends with its keeper."""
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        open_store(agent)
        (service,) = children_of(agent.keeper_pid)
        os.kill(agent.keeper_pid, signal.SIGKILL)
        agent.wait_for_note("lost", str)
        assert start_time(service) is None


@contextlib.contextmanager
def foreign_service(answer: bytes) -> Iterator[int]:
    """Listen on a port and answer each connection with the same bytes, once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
