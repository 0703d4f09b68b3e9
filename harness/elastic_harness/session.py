"""One cluster for many runs: what a pytest session, or a command, holds on to.

The cluster's server is started at the first run, preloads torch once, and is reused: a run's nodes
come and go in milliseconds. Before each run it must be as it was when it was new; one that is not
is replaced, and that is said. `close` leaves nothing behind; neither does being killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence

from elastic_harness.cluster.choose import ClusterChoice
from elastic_harness.cluster.cluster import ClusterEvent, LiveCluster, ServerLost
from elastic_harness.cluster.server import stale_resources
from elastic_harness.faults.registry import FaultRegistry, built_in_faults
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.leaks import Spared, what_is_left
from elastic_harness.loop_thread import LoopThread
from elastic_harness.scenario.launchers import Launcher, modules_to_preload
from elastic_harness.scenario.planning.planner import Plan
from elastic_harness.scenario.runner import Run, RunResult
from elastic_harness.scenario.setup import make_stage_plan
from elastic_harness.toxiproxy.remote import EMBEDDED, RemoteToxiproxy, find_server
from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.errors import UsageError

__all__ = ["HarnessSession", "OpenRun"]

_START_LIMIT_S = 150.0
_CLOSE_LIMIT_S = 30.0
# Beyond the scenario's own limit: healing, looking for survivors, taking nodes away.
_TEARDOWN_LIMIT_S = 60.0
# What a Unix socket's path may have, its end included (sockaddr_un).
_MAX_SOCKET_PATH = 108


class OpenRun:
    """A run that has been started, in a thread; `wait` gives its result."""

    def __init__(self, thread: LoopThread, run: Run, *, limit_s: float, socket_dir: str) -> None:
        self.thread = thread
        self.limit_s = limit_s
        self.run = run
        run.finished.add_done_callback(lambda _: shutil.rmtree(socket_dir, ignore_errors=True))

    def wait(self) -> RunResult:
        """Wait until the run is over and the cluster clean.

        What ends the wait (Ctrl-C, pytest-timeout) ends the run first, and where its ranks stood is
        told.
        """
        try:
            return self._wait(self.limit_s + _TEARDOWN_LIMIT_S)
        except Exception:
            raise
        except BaseException:
            self.stop("interrupted", hangs=True)
            raise

    def stop(self, reason: str, *, hangs: bool = False) -> RunResult:
        """End the run as it stands and wait until the cluster is clean; see `Run.stop`."""
        self.thread.call(lambda: self.run.stop(reason, hangs=hangs))
        return self._wait(_TEARDOWN_LIMIT_S)

    def _wait(self, limit_s: float) -> RunResult:
        return self.thread.wait(lambda: self.run.finished, timeout_s=limit_s)


class HarnessSession:
    """A loop thread and a cluster, from the first run until `close`.

    `patience` multiplies the times that something is waited for, `checkers` are those that clauses
    may name.
    """

    def __init__(
        self,
        choice: ClusterChoice,
        *,
        faults: FaultRegistry | None = None,
        toxiproxy: str = EMBEDDED,
        preload: Sequence[str] = DEFAULT_PRELOAD,
        patience: float = 1.0,
        checkers: Registry = STANDARD,
    ) -> None:
        self.choice = choice
        self.patience = patience
        self.checkers = checkers
        self._preload = modules_to_preload(preload)
        self._toxiproxy = toxiproxy
        self._remote: RemoteToxiproxy | None = None
        self.faults = faults or built_in_faults()
        self._thread: LoopThread | None = None
        self._cluster: LiveCluster | None = None
        self._open: OpenRun | None = None
        self._is_lost = False
        self._has_lost_one = False
        # Why clusters had to be replaced, in order, for messages.
        self.replacements: list[str] = []

    @property
    def is_started(self) -> bool:
        """Tell whether the cluster's server has been started."""
        return self._cluster is not None

    @property
    def shared(self) -> Spared:
        """The processes of a started session, and its descriptors and thread in this process."""
        if self._cluster is None or self._thread is None:
            return Spared()
        return Spared(
            pids=self._cluster.own_pids,
            fds=self._cluster.own_fds | self._thread.loop.own_fds,
            threads=frozenset({self._thread.native_id}),
        )

    @property
    def thread(self) -> LoopThread:
        """The thread that the cluster lives in, started if it was not."""
        self._ensure_started()
        assert self._thread is not None, "a started session has a thread"
        return self._thread

    @property
    def cluster(self) -> LiveCluster:
        """The cluster, started if it was not."""
        self._ensure_started()
        assert self._cluster is not None, "the cluster has just been started"
        return self._cluster

    def open(
        self,
        plan: Plan,
        launcher: Launcher,
        *,
        directory: str,
        base_dir: str,
        cwd: str,
        environ: Mapping[str, str],
        shared: Sequence[str] = (),
        is_open: bool = False,
        preloaded: bool = True,
    ) -> OpenRun:
        """Start a run and return at once; raises UsageError while another one runs."""
        if self._open is not None and not self._open.run.is_over:
            raise UsageError("one job runs at a time: wait() for the one before, or finish() it")
        cluster, thread = self.cluster, self._thread
        assert thread is not None, "a started session has a thread"
        if cluster.scratch:
            socket_dir = _make_socket_dir(cluster.scratch)
        else:
            # A name only: reports are taken on other machines.
            socket_dir = f"/run/elastic-{secrets.token_hex(8)}"
        try:
            socket_path = os.path.join(socket_dir, "observe")
            stage = make_stage_plan(
                plan,
                launcher,
                directory=directory,
                socket_path=socket_path,
                base_dir=base_dir,
                cwd=cwd,
                cluster_kind=cluster.kind,
                environ=environ,
                shared=shared,
                preloaded=preloaded,
                launch_environs=self._launch_environs(plan),
                patience=self.patience,
            )

            def begin() -> OpenRun:
                run = Run(
                    thread.loop,
                    cluster,
                    plan,
                    stage,
                    self.faults,
                    directory=directory,
                    socket_path=socket_path,
                    is_open=is_open,
                    checkers=self.checkers,
                    toxiproxy=self._remote_toxiproxy(thread) if plan.scenario.proxies else None,
                )
                opened = OpenRun(
                    thread,
                    run,
                    limit_s=plan.scenario.limit * self.patience,
                    socket_dir=socket_dir,
                )
                self._open = opened
                run.start()
                return opened

            return thread.call(begin)
        except BaseException:
            shutil.rmtree(socket_dir, ignore_errors=True)
            raise

    def pause_clock(self) -> None:
        """Let no deadline of the run at hand come nearer; harmless when there is none."""
        self._in_run(lambda run: run.pause_clock())

    def resume_clock(self) -> None:
        """Let the deadlines of the run at hand go on."""
        self._in_run(lambda run: run.resume_clock())

    def _in_run(self, do: Callable[[Run], None]) -> None:
        opened, thread = self._open, self._thread
        if opened is not None and thread is not None and not opened.run.is_over:
            thread.call(lambda: do(opened.run))

    def close(self) -> None:
        """End the cluster and the thread; harmless when there is none."""
        try:
            self._close()
        finally:
            if self._has_lost_one:
                # A supervisor that was killed has removed nothing.
                stale_resources.remove_stale()

    def _close(self) -> None:
        thread, self._thread = self._thread, None
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()
        cluster, self._cluster = self._cluster, None
        if thread is None:
            return
        try:
            if cluster is not None:
                thread.wait(cluster.close, timeout_s=_CLOSE_LIMIT_S)
        finally:
            thread.stop()

    def _remote_toxiproxy(self, thread: LoopThread) -> RemoteToxiproxy | None:
        """Return the Toxiproxy server that is not ours, started at the first run that needs it."""
        if self._toxiproxy == EMBEDDED:
            return None
        if self._remote is None:
            is_url = "://" in self._toxiproxy
            self._remote = RemoteToxiproxy(
                thread.loop,
                url=self._toxiproxy if is_url else "",
                program="" if is_url else find_server(self._toxiproxy),
            )
        return self._remote

    def _launch_environs(self, plan: Plan) -> list[Callable[[str], Mapping[str, str]]]:
        """Return what the plan's faults need of a launcher's environment, where any does."""
        actions = [each.entry.action for each in plan.entries]
        faults = [self.faults.read(action.name, action.value) for action in actions]
        return [fault.launch_environ for fault in faults if fault.launch_environ("")]

    def _ensure_started(self) -> None:
        if self._is_lost:
            self._replace("it was lost")
        if self._cluster is not None and (self._open is None or self._open.run.is_over):
            # Between two runs. What is just going has had its time: a run waits for its end.
            left = what_is_left(self._cluster)
            if left:
                self._replace(f"it was not clean: {'; '.join(left)}")
        if self._cluster is not None:
            return
        thread = LoopThread()
        cluster = self.choice.make(
            thread.loop, on_event=self._on_cluster_event, preload=self._preload
        )
        thread.start()
        try:
            thread.wait(cluster.start, timeout_s=_START_LIMIT_S)
        except BaseException:
            # A server that is still starting ends with this process, at the latest.
            self._has_lost_one = True
            thread.stop()
            raise
        self._thread, self._cluster = thread, cluster

    def _replace(self, reason: str) -> None:
        """End the cluster at hand; the next one is started where it is needed."""
        self.replacements.append(reason)
        self._is_lost = False
        self.close()

    def _on_cluster_event(self, event: ClusterEvent) -> None:
        if isinstance(event, ServerLost):
            self._is_lost = self._has_lost_one = True
        if self._open is not None and not self._open.run.is_over:
            self._open.run.on_cluster_event(event)


def _make_socket_dir(scratch: str) -> str:
    """Return a new folder for a run's socket, removed by the cluster's supervisor at the latest.

    It cannot be the run's own directory, whose path may be longer than a socket's can be.
    """
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    # Its name can be guessed, and any user may make a folder there.
    found = os.lstat(scratch)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"{scratch} is not a folder that only you can write in: another user has made it",
            hint="Remove it, or set TMPDIR to a folder of your own.",
        )
    folder = tempfile.mkdtemp(prefix="run-", dir=scratch)
    if len(os.fsencode(os.path.join(folder, "observe"))) >= _MAX_SOCKET_PATH:
        raise UsageError(
            f"cannot make a socket in {folder}: its path would be too long",
            hint="Set TMPDIR to a folder with a shorter path.",
        )
    return folder
