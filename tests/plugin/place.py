"""A folder with tests in it, and pytest called there as a user would call it.

The inner pytest is a process of its own, with the plugin loaded by its entry point. Most scripts
import no torch: what is tested here is the plugin, and a worker may be any program. Clusters are
forked from one interpreter (`conftest.one_interpreter`), and so is what hosts their stores.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_harness.cluster.server.server_process import VARIABLE as FORK_SERVER

from pytest_elastic.config import DEFAULT_PRELOAD
from tests import launch_server

__all__ = [
    "KILLED_ONCE",
    "LIMIT_S",
    "SCRIPTS",
    "WITHOUT_OTHERS",
    "Called",
    "Place",
    "as_user",
    "scenario",
    "wait_for_ring",
]

# Plugins that have nothing to do with ours: half a second of every pytest that is called.
WITHOUT_OTHERS = "-p no:hypothesispytest -p no:faker"
# Of a pytest with a handful of runs on two busy cores; most take a tenth of it.
LIMIT_S = 400.0
# What a scenario of `second_try.py` does and expects.
KILLED_ONCE = """
    timeline:
      - when: {event: worker_hello, rank: 1}
        kill: rank 1
    expect:
      finally: [{job: succeeded}, {restarts: 1}]
"""

SCRIPTS = {
    # Writes down that it was there: one line for each worker that was ever started.
    "hello.py": """
        import os, sys
        print("hello from rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    """,
    # Runs until it is ended; says that it got this far, if somebody wants to know.
    "forever.py": """
        import os, time
        if "BELL" in os.environ:
            with open(os.environ["BELL"], "w") as bell:
                bell.write(os.environ["RANK"])
        time.sleep(600)
    """,
    # Prints 200 MB, and then one line of another kind.
    "prints_much.py": """
        import sys
        line = "x" * 1023 + "\\n"
        for _ in range(200 * 1024):
            sys.stdout.write(line)
        print("that was all")
    """,
    # Ends well once it has been restarted.
    "second_try.py": """
        import os, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
    """,
    "exits_3.py": """
        import sys
        sys.exit(3)
    """,
    "broken.py": """
        def train(:
            pass
    """,
}


def as_user(user: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one as a user; only root may call it."""
    return [sys.executable, str(Path(__file__).with_name("as_user.py")), str(user), *command]


def _plain(text: str) -> str:
    """Take the indentation of our source away, and the line that opens it."""
    lines = text.strip("\n").rstrip().splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines) + "\n"


def scenario(
    id: str,
    body: str = "",
    *,
    script: str = "hello.py",
    nodes: str = "2",
    max_restarts: int = 0,
) -> str:
    """Return a scenario that expects its job to succeed, with more to it in `body`."""
    expect = "expect: {finally: [{job: succeeded}]}\n" if "expect:" not in body else ""
    return (
        f"version: 1\nid: {id}\ntitle: About {id}\n"
        f"job: {{script: {script}, max_restarts: {max_restarts}}}\nnodes: {nodes}\n"
        f"{_plain(body) if body else ''}{expect}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What became of a pytest that was called."""

    code: int
    out: str
    seconds: float

    @property
    def outcomes(self) -> dict[str, str]:
        """Each test's outcome by what stands behind the last `::`, as `-rA` says it."""
        found: dict[str, str] = {}
        for line in self.out.splitlines():
            word, _, rest = line.partition(" ")
            if word in {"PASSED", "FAILED", "ERROR", "XFAIL", "XPASS"} and "::" in rest:
                found[rest.partition(" - ")[0].rpartition("::")[2]] = word
        return found

    def about(self, test: str) -> str:
        """Return what stands under the heading of one failed test."""
        lines = self.out.splitlines()
        begin = next(
            number
            for number, line in enumerate(lines)
            if line.startswith("___") and f" {test} " in line
        )
        end = next(
            number
            for number, line in enumerate(lines[begin + 1 :], begin + 1)
            if (line.startswith(("___", "===")) and line.endswith(("___", "===")))
            or line.startswith("elastic: ")  # what is said of the whole session
        )
        return "\n".join(lines[begin + 1 : end])


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with tests in it."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    user: int | None = None
    preload: str = ",".join(DEFAULT_PRELOAD)

    def add(self, name: str, text: str) -> Path:
        """Write one file, without the indentation of our own source."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_plain(text))
        return path

    def add_ini(self, *lines: str) -> None:
        """Write an ini file, so that no other one is found, with some lines of its own."""
        own = (f"addopts = {WITHOUT_OTHERS}", f"elastic_preload = {self.preload}", *lines)
        self.add("pytest.ini", "\n".join(("[pytest]", *own)))

    def add_scripts(self) -> None:
        """Write all scripts."""
        for name, text in SCRIPTS.items():
            self.add(name, text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest with some arguments, in a process group of its own."""
        return self.start_command([sys.executable, "-m", "pytest", *arguments])

    def start_command(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command as one would type it here."""
        return subprocess.Popen(
            list(command) if self.user is None else as_user(self.user, command),
            cwd=self.folder,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pytest(self, *arguments: str, limit_s: float = LIMIT_S) -> Called:
        """Call pytest and wait for its end."""
        return self.call([sys.executable, "-m", "pytest", *arguments], limit_s=limit_s)

    def call(self, command: Sequence[str], *, limit_s: float = LIMIT_S) -> Called:
        """Call a command and wait for its end; one that takes too long is ended, and that fails."""
        begin = time.monotonic()
        process = launch_server.start(
            list(command) if self.user is None else as_user(self.user, command),
            cwd=self.folder,
            environ=self._environ(),
            stderr=subprocess.STDOUT,
        )
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler says where it hangs
            out, _ = process.communicate(timeout=LIMIT_S)
            raise AssertionError(f"no end within {limit_s:g} s:\n{out.decode()}") from None
        assert process.returncode is not None, "it has ended"
        seconds = time.monotonic() - begin
        return Called(code=process.returncode, out=out.decode(), seconds=seconds)

    def debug(self, *arguments: str, looks_s: float, types: str) -> Called:
        """Call pytest, look at the prompt of pdb for so long, then type something there."""
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=self.folder,
            env=self._environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            said = b""
            while not said.endswith(b"(Pdb) "):
                byte = process.stdout.read(1)
                assert byte, said.decode()
                said += byte
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=looks_s)
                raise AssertionError(f"pytest did not wait at the prompt:\n{said.decode()}")
            out, _ = process.communicate(types.encode(), timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
        text = (said + out).decode()
        return Called(code=process.returncode, out=text, seconds=time.monotonic() - begin)

    @property
    def runs(self) -> list[str]:
        """The directories of runs that were kept, by name."""
        kept = self.folder / ".elastic"
        found = kept.iterdir() if kept.is_dir() else ()
        return sorted(path.name for path in found if path.is_dir())

    def _environ(self) -> dict[str, str]:
        # What the outer pytest is told is not meant for the inner one. Below tox, pytest keeps its
        # cache in tox's folder: all inner ones, three at a time, would share what failed last.
        # A pipe is buffered, as it is at a user's: what forks with a full buffer prints it twice.
        foreign = ("PYTEST_", "PET_", "ELASTIC_", "COV_", "COVERAGE_", "TOX_", "GITHUB_",
                   "PYTHONUNBUFFERED")  # fmt: skip
        kept = {
            name: text
            for name, text in os.environ.items()
            if name == FORK_SERVER or not name.startswith(foreign)
        }
        path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "COLUMNS": "120", **self.environ}


def wait_for_ring(bell: Path, pytest_: subprocess.Popen[str]) -> None:
    """Wait until a job writes into a pipe; fails, with what it said, where pytest ends before."""
    reading, pidfd = os.open(bell, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(pytest_.pid)
    try:
        ready, _, _ = select.select([reading, pidfd], [], [], LIMIT_S)
    finally:
        os.close(reading)
        os.close(pidfd)
    assert reading in ready, pytest_.communicate()[0] if ready else "nothing rang in time"
