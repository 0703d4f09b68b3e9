"""`pytest-elastic run` and what it is given that cannot work: one clear error, and nothing left.

Real commands, as users type them. Each says what is wrong once, ends with a code that says whose
doing it was, within a bounded time, and shows no line of our own code.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_port
from tests.integration.called_launcher import Ended, Running, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with scripts that end well, end badly, or do not parse."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "empty").touch(mode=0o600)
    (tmp_path / "exits_3.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "broken.py").write_text("def train(:\n    pass\n")
    return tmp_path


# --- what the command line says --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nprocs_per_node=2 hello.py", "there is no option --nprocs_per_node"),
        ("--nprocs_per_node=2 hello.py", "Did you mean --nproc-per-node?"),
        ("", "the following arguments are required: SCRIPT"),
        ("nope.py", "there is no script 'nope.py' (looked from "),
        ("--nnodes=4:2 hello.py", "--nnodes=4:2 asks for at least 4 and at most 2 nodes"),
        ("--nnodes=many hello.py", "--nnodes='many' is not a number of nodes"),
        ("--standalone --nnodes=2 hello.py", "--standalone is a job of one node, and --nnodes=2"),
        ("-m --no-python hello.py", "--no-python and --module contradict each other"),
        ("--nproc-per-node=0 hello.py", "--nproc-per-node=0: expected a number of workers from 1"),
        ("--max-restarts=-1 hello.py", "--max-restarts=-1: expected a whole number of at least 0"),
        (
            "--rdzv-backend=zoo hello.py",
            "--rdzv-backend=zoo: there is no such backend; known are c10d,",
        ),
        ("--rdzv-endpoint=a:b:c hello.py", "--rdzv-endpoint='a:b:c' is not an endpoint"),
        ("--rdzv-endpoint=a:70000 hello.py", "has port 70000: ports end at 65535"),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=a,b:29401,a:29400 hello.py",
            "--rdzv-endpoint='a,b:29401,a:29400' names a:29400 twice",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1,LOCALHOST. hello.py",
            "names one endpoint twice, as 127.0.0.1:29400 and as LOCALHOST.:29400: a majority",
        ),
        ("--rdzv-backend=c10d --rdzv-endpoint=a,,b hello.py", "='a,,b' has an empty place"),
        ("--rdzv-backend=c10d --rdzv-endpoint=a,b:0 hello.py", "port 0 means any free one"),
        ("--rdzv-backend=c10d --rdzv-endpoint=a,b:x hello.py", "'b:x' is not an endpoint"),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=a,b --rdzv-conf=is_host=1 hello.py",
            "does not say which of several endpoints this node shall host",
        ),
        ("--rdzv-conf=lease=soon hello.py", "--rdzv-conf lease=soon: expected a number of seconds"),
        ("--rdzv-conf=lease=0.1 hello.py", "--rdzv-conf lease=0.1: expected 0.2 seconds at least"),
        ("--rdzv-conf=lease=1,beat_interval=1 hello.py", "at least twice the beat interval"),
        ("--redirects=7 hello.py", "--redirects=7 names no streams"),
        ("--signals-to-handle=SIGKILL hello.py", "SIGKILL is not a signal that can be handled"),
        ("--worker-start=warm hello.py", "invalid choice: 'warm' (choose from"),
        ("--local-addr=nowhere.invalid hello.py", "--local-addr=nowhere.invalid: no such address"),
        ("--rdzv-token-file=no hello.py", "--rdzv-token-file=no: No such file or directory"),
        ("--rdzv-token-file=hello.py hello.py", "can be read or written by every user"),
        ("--rdzv-token-file=empty hello.py", "--rdzv-token-file=empty is empty: expected a token"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_at_once(
    folder: Path, words: str, message: str
) -> None:
    """Exit code 2, one message on stderr, nothing started."""
    ended = run(*words.split(), cwd=folder)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("pytest-elastic run: ") == 1
    assert len(ended.err.splitlines()) <= 2, "the error, and what to try"
    assert ended.out == ""
    assert "Traceback" not in ended.err
    ended.expect_no_line_of_ours()


def test_a_setting_that_is_not_known_is_warned_of_and_the_job_runs(folder: Path) -> None:
    """A command that works with torchrun goes on to work."""
    ended = run("--standalone", "--rdzv-conf='leese=1,lease=3'", "hello.py", cwd=folder)
    assert ended.code == 0, ended.err
    assert "--rdzv-conf has no setting 'leese': it has no effect. Did you mean" in ended.err


def test_a_mistake_in_a_variable_is_told_by_the_variables_name(folder: Path) -> None:
    """Nobody finds an option that they have not written."""
    ended = run("hello.py", cwd=folder, environ={"PET_MAX_RESTARTS": "some"})
    assert ended.code == 2
    assert "PET_MAX_RESTARTS=some: expected a whole number" in ended.err


def test_a_module_that_cannot_be_preloaded_is_named(folder: Path) -> None:
    """The warm interpreter says which, and the agent that it cannot go on without."""
    ended = run("--preload=no_such_module", "hello.py", cwd=folder)
    assert ended.code == 2
    message = "cannot preload 'no_such_module': No module named 'no_such_module'"
    assert ended.err.count(message) == 1
    assert "this node cannot go on: the keeper ended with 2" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


# --- where the nodes meet --------------------------------------------------------------------


class Foreigner:
    """Somebody else's server: takes connections, and answers nothing, or what we do not speak."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._taken: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(connection)
            if self._answer:
                connection.sendall(self._answer)

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for connection in self._taken:
            connection.close()


@pytest.fixture(params=[b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "http"])
def foreigner(request: pytest.FixtureRequest) -> Iterator[Foreigner]:
    """Return a foreign server."""
    foreigner = Foreigner(request.param)
    yield foreigner
    foreigner.close()


def not_joined(ended: Ended, message: str, *, code: int, within_s: float) -> None:
    """Expect that a job could not be joined, and that this is all that is said."""
    assert ended.code == code, ended.err
    verdict = {2: "the job cannot be joined: ", 3: "the job cannot go on: cannot join run "}[code]
    assert ended.err.count(verdict) == 1, ended.err
    assert message in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert ended.seconds < within_s
    ended.expect_no_line_of_ours()


def test_a_port_that_somebody_else_has_is_no_meeting_point(
    folder: Path, foreigner: Foreigner
) -> None:
    """The node looks there for as long as a node may take to come, then says what it found."""
    endpoint = f"127.0.0.1:{foreigner.port}"
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--nnodes=2")
    ended = run(*words, "--rdzv-conf=join_timeout=2", "hello.py", cwd=folder)
    found = {
        b"": "no leader was reached within 2 s (the endpoint has not answered yet)",
        b"HTTP/1.1 400 Bad Request\r\n\r\n": f"what listens at {endpoint} is not a torch store",
    }
    not_joined(ended, found[foreigner._answer], code=3, within_s=150)


@pytest.mark.parametrize("foreigner", [b""], ids=["silent"], indirect=True)
def test_a_node_that_is_to_host_does_not_wait_for_a_port_to_become_free(
    folder: Path, foreigner: Foreigner
) -> None:
    """It was told to be the host: nobody else will come to be it."""
    endpoint = f"127.0.0.1:{foreigner.port}"
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--nnodes=2")
    ended = run(*words, "--rdzv-conf=is_host=true,join_timeout=600", "hello.py", cwd=folder)
    message = f"cannot host the rendezvous at {endpoint}: cannot listen on {endpoint}: Address"
    not_joined(ended, message, code=2, within_s=150)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.0.0.1", "cannot reach a store at 127.0.0.1:{port}: Connection refused"),
        ("no-such-host.invalid", "the name no-such-host.invalid is not known here"),
    ],
)
def test_an_endpoint_where_nobody_is_is_given_up_in_time(
    folder: Path, host: str, message: str
) -> None:
    """The address, and what the system said of it."""
    port = free_port()
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", "--nnodes=2")
    ended = run(*words, "--rdzv-conf=is_host=false,join_timeout=2", "hello.py", cwd=folder)
    not_joined(ended, message.format(port=port), code=3, within_s=150)


def test_a_host_that_nobody_joins_says_who_was_there(folder: Path) -> None:
    """Exit code 3: it is the surroundings' doing."""
    port = free_port()
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2:3")
    conf = "--rdzv-conf=join_timeout=2"
    ended = run(*words, conf, "--node-name=alone", "hello.py", cwd=folder)
    assert ended.code == 3
    assert "1 of at least 2 nodes were ready within 2 s: alone. Start the others with" in ended.err
    assert "Traceback" not in ended.err


def test_a_node_that_finds_nobody_says_soon_what_it_looks_for(folder: Path) -> None:
    """Where, for how long at most, what it found, and what to look at; long before it gives up."""
    port = free_port()
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2")
    with Running(*words, "--rdzv-conf=is_host=false", "hello.py", cwd=folder) as newcomer:
        newcomer.wait_for(
            f"looking for the job at 127.0.0.1:{port} for at most 600 s in all: cannot reach a "
            f"store at 127.0.0.1:{port}: Connection refused; is the node that hosts it started, "
            "with the same --rdzv-endpoint and --rdzv-id, and can it be reached from here?\n"
        )
        assert newcomer.process.poll() is None


def test_of_several_endpoints_it_is_said_which_are_reached_and_which_are_not(folder: Path) -> None:
    """One is this node's own, at one is nobody, one has a name that is not known."""
    port = free_port()
    endpoints = f"127.0.0.1:{port},127.0.0.2:{port},no-such-host.invalid:{port}"
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}", "--nnodes=2:4")
    guest_only = ("--rdzv-conf=join_timeout=15,is_host=false", "--node-name=guest")
    conf = "--rdzv-conf=join_timeout=600"
    with Running(*words, conf, "hello.py", cwd=folder) as host:
        host.wait_for("reached 1 of 3 endpoints: ")
        guest = run(*words, *guest_only, "hello.py", cwd=folder)
    for said in (host.printed, guest.err):
        assert f"reached 1 of 3 endpoints: 127.0.0.1:{port}; not 127.0.0.2:{port} (" in said
    not_joined(guest, f"127.0.0.1:{port}: no node has begun the job there", code=3, within_s=150)
    assert f"127.0.0.2:{port}: cannot reach a store at 127.0.0.2:{port}: Connection" in guest.err
    assert "the name no-such-host.invalid is not known here" in guest.err


def test_a_node_that_does_not_fit_a_job_is_told_why(folder: Path) -> None:
    """Its name is taken, its settings differ, or it belongs to another job; the job waits on."""
    port = free_port()
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2:3")
    with Running(*meeting, "--rdzv-id=mine", "--node-name=first", "hello.py", cwd=folder) as host:
        host.wait_for("hosting the rendezvous")
        same_name = run(*meeting, "--rdzv-id=mine", "--node-name=first", "hello.py", cwd=folder)
        mine = ("--rdzv-id=mine", "--node-name=second", "--max-restarts=5", "--rdzv-conf=lease=9")
        other_settings = run(*meeting, *mine, "hello.py", cwd=folder)
        yours = ("--rdzv-id=yours", "--rdzv-conf=join_timeout=7")
        other_run = run(*meeting, *yours, "hello.py", cwd=folder)
        host.wait_for(
            "waiting for at least 2 nodes for at most 600 s in all, and ready are 1 (first)"
        )
        assert host.process.poll() is None
    not_joined(
        same_name, "as node 'first': a node of that name at 127.0.0.1:", code=2, within_s=150
    )
    not_joined(
        other_settings,
        "those of first, which leads: --max-restarts is 5 on second and 0 on first; "
        "--rdzv-conf lease is 9 on second and 5 on first. Give all nodes the same options.",
        code=2,
        within_s=150,
    )
    said = f"127.0.0.1:{port} is that of run 'mine', and this node was started for run 'yours'"
    not_joined(other_run, said, code=3, within_s=150)
    first, *_ = re.findall("looking for the job at .*", other_run.err)
    assert said in first  # after two seconds, and not when it has waited for what is not there


# --- what is run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said_by_the_program", "code"),
    [
        (["broken.py"], "SyntaxError: invalid syntax", 1),
        (["exits_3.py"], "", 3),
        (["-m", "no_such_module"], "No module named no_such_module", 1),
        (["--no-python", "./no-such-program"], "No such file or directory: ./no-such-program", 127),
        (["--no-python", "no-such-program"], "No such file or directory: no-such-program", 127),
    ],
)
def test_a_program_that_fails_is_told_with_its_code_and_its_own_words(
    folder: Path, words: list[str], said_by_the_program: str, code: int
) -> None:
    """Exit code 1; its traceback once, as it printed it; who failed first, with what."""
    ended = run(*words, cwd=folder)
    assert ended.code == 1
    everything = ended.out + ended.err
    assert everything.count("the job failed: rank 0 on ") == 1
    assert f"in round 1: exit code {code}" in everything
    if said_by_the_program:
        assert everything.count(said_by_the_program) == 1, everything
    ended.expect_no_line_of_ours()
