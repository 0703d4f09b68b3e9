"""The driver of a Ray job that runs a command on each machine; no other file of ours imports Ray.

It is a process of its own, because Ray starts threads, and ends the process where it finds no
raylet. It talks over the Unix socket whose descriptor is its only argument:

    open {address, count, nodes}             finds several nodes that have a processor to give
    reserve {}                               takes a processor of each of them
    release {}                               gives these back
    reserve_for {key, node, resources}       takes resources of a node, once for each key
    release_all {}                           gives all of these back
    begin {node, command, environ, given}    starts an agent's command on one of them
    end {node, given}                        gives it the rest of what it reads, until its end

Each node has one worker of Ray's, an actor, which all commands there are run by: to start one takes
longer than most commands do. It needs no processor.

The driver ends when the socket does, and with it its job, what the job has reserved, and a Ray of
its own. What a command has left behind as a daemon stays.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from elastic_harness.cluster.machines.travel import code_for_agents
from elastic_harness.conversation import Conversation, Reply
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

try:
    import ray
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    sys.exit(f"Ray cannot be imported here ({error}): pip install 'pytest-elastic[ray]'")

__all__: list[str] = []

# How long to wait for a processor that another job is about to give back. After that it is taken
# to be in use: a test does not wait for the end of another job.
_RESERVE_LIMIT_S: Final = 10.0
# An agent answers within a second, once Ray has started a worker for it.
_RUN_LIMIT_S: Final = 50.0
# The least that Ray accepts is 75 MB; nothing of ours lies there.
_OBJECT_STORE_BYTES: Final = 80_000_000
_NODE_ID: Final = "ray.io/node-id"
# What Ray raises (`RayError` is no RuntimeError) where it cannot be had, or a node is lost.
_FAILURES: Final = (ray.exceptions.RayError, RuntimeError, OSError, ValueError, ImportError)


class _Runner:
    """Runs commands on the machine where Ray has put it; nothing of ours is imported there."""

    def __init__(self) -> None:
        import contextlib
        import os

        # Ray's workers wait for all others, and are the first to be killed where memory is short.
        # An agent is no such thing; without permission it stays as nice as Ray made it.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")
        self._process: Any = None

    def begin(
        self, command: Sequence[str], environ: Mapping[str, str], given: str, limit_s: float
    ) -> tuple[str, str]:
        """Start a command; returns the first line that it tells, or "" and what it has said."""
        import contextlib
        import subprocess
        import threading

        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                cwd="/",
            )
        except OSError as error:
            return "", str(error)
        timer = threading.Timer(limit_s, self._process.kill)
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(given.encode())
            self._process.stdin.flush()
        told = self._process.stdout.readline().decode(errors="replace")
        timer.cancel()
        return told, "" if told else self.end("", limit_s)[1]

    def is_waiting(self) -> bool:
        """Tell whether a command was begun, and not ended."""
        return self._process is not None and self._process.poll() is None

    def end(self, given: str, limit_s: float) -> tuple[int, str]:
        """Give the command the rest, and wait for its end; returns what it has said, too."""
        import subprocess

        process, self._process = self._process, None
        try:
            _, said = process.communicate(given.encode(), timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            return 1, str(error)
        text = said.decode(errors="replace").strip()
        return process.returncode, text or f"the agent ended with {process.returncode}"


class _Job:
    """Our job in Ray, from `open` to `close`."""

    def __init__(self) -> None:
        self._own_folder = ""
        self._group: PlacementGroup | None = None
        self._groups: dict[str, PlacementGroup] = {}  # by what they were reserved for
        self._runners: dict[str, Any] = {}

    def open(self, address: str, count: int, nodes: Sequence[str]) -> dict[str, Any]:
        """Find these nodes, or `count` nodes that can give a processor, or all (0)."""
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address:
            ray.init(address=address, **quiet)
        else:
            self._own_folder = tempfile.mkdtemp(prefix="elastic-ray-")
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=self._own_folder,
                **quiet,
            )
        able = {
            node["NodeID"]: {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "resources": node["Resources"],
                "labels": node["Labels"],
            }
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        if lost := [each for each in nodes if each not in able]:
            raise RuntimeError(f"Ray has lost the node {', '.join(lost)}")
        if not able or count > len(able):
            addresses = ", ".join(node["address"] for node in able.values())
            found = f"{len(able)} ({addresses or 'none'})"
            raise RuntimeError(
                f"expected {max(count, 1)} machines, found {found} that have a processor for Ray"
            )
        chosen = self._reserve(len(nodes) or count or len(able), nodes)
        for node in chosen:
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            actor = ray.remote(num_cpus=0, scheduling_strategy=where)(_Runner)
            self._runners[node] = actor.remote()
        code_for_agents()  # it is packed once, while Ray starts these
        return {"nodes": [able[node] for node in chosen]}

    def _reserve(self, count: int, nodes: Sequence[str]) -> list[str]:
        group = self._group = placement_group(
            [{"CPU": 1}] * count,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: node} for node in nodes] or None,
        )
        if not group.wait(_RESERVE_LIMIT_S):
            free, all_ = (
                resources.get("CPU", 0)
                for resources in (ray.available_resources(), ray.cluster_resources())
            )
            raise RuntimeError(
                f"Ray gives no processor on each of {count} machines within {_RESERVE_LIMIT_S:g} s:"
                f" {free:g} of its {all_:g} processors are free"
            )
        found = placement_group_table(group)["bundles_to_node_id"]
        return [found[index] for index in range(count)]

    def reserve(self) -> dict[str, Any]:
        """Take a processor of each node again."""
        if self._group is None:
            nodes = tuple(self._runners)
            self._reserve(len(nodes), nodes)
        return {}

    def release(self) -> dict[str, Any]:
        """Give the processors back."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        return {}

    def reserve_for(self, key: str, node: str, resources: Mapping[str, float]) -> dict[str, Any]:
        """Take resources of a node, unless they were taken for the same."""
        if key not in self._groups:
            group = self._groups[key] = placement_group(
                [dict(resources)], bundle_label_selector=[{_NODE_ID: node}]
            )
            if not group.wait(_RESERVE_LIMIT_S):
                remove_placement_group(self._groups.pop(key))
                wanted = ", ".join(f"{name}: {each:g}" for name, each in resources.items())
                raise RuntimeError(
                    f"others have what is left of {wanted} there, and had it for "
                    f"{_RESERVE_LIMIT_S:g} s"
                )
        return {}

    def release_all(self) -> dict[str, Any]:
        """Give back what was taken for keys."""
        while self._groups:
            remove_placement_group(self._groups.popitem()[1])
        return {}

    def begin(
        self, node: str, command: Sequence[str], environ: Mapping[str, str], given: str
    ) -> dict[str, Any]:
        """Start a command on a node, and wait for the line that it tells first."""
        given = code_for_agents().decode() + given
        begun = self._runners[node].begin.remote(command, environ, given, _RUN_LIMIT_S)
        told, said = ray.get(begun, timeout=_RUN_LIMIT_S)
        return {"told": told, "said": said}

    def end(self, node: str, given: str) -> dict[str, Any]:
        """Give the command that waits on a node the rest; `is_there`: there was one."""
        runner = self._runners[node]
        if not ray.get(runner.is_waiting.remote(), timeout=_RUN_LIMIT_S):
            return {"is_there": False}
        code, said = ray.get(runner.end.remote(given, _RUN_LIMIT_S), timeout=_RUN_LIMIT_S)
        return {"is_there": True, "code": code, "said": said}

    def close(self) -> None:
        """End the job, and a Ray that is its own."""
        ray.shutdown()
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)


def _main(fd: int) -> None:
    loop = Loop()
    loop.enable_thread_wakeup()
    job = _Job()
    threads: list[threading.Thread] = []
    at_once: dict[str, Callable[..., dict[str, Any]]] = {
        "open": job.open,
        "reserve": job.reserve,
        "release": job.release,
        "reserve_for": job.reserve_for,
        "release_all": job.release_all,
    }

    def obey(op: str, fields: JsonObject, _: list[int], reply: Reply) -> None:
        given = {name: value for name, value in fields.items() if name not in {"id", "op"}}
        if op in at_once:
            # In this thread: a Ray of our own ends with the thread that has started it.
            _answer(loop, reply, partial(at_once[op], **given))
            return
        act = partial(job.begin if op == "begin" else job.end, **given)
        thread = threading.Thread(target=_answer, args=(loop, reply, act))
        threads.append(thread)
        thread.start()

    # Kept for as long as the loop runs: it is the conversation's.
    conversation = Conversation(
        loop, socket.socket(fileno=fd), on_request=obey, on_closed=lambda _: loop.stop()
    )
    loop.run()
    conversation.close()
    for thread in threads:
        thread.join()
    job.close()


def _answer(loop: Loop, reply: Reply, act: Callable[[], dict[str, Any]]) -> None:
    try:
        fields = act()
    except _FAILURES as error:
        # "Failed to connect" has its reason in the exception that it comes of.
        causes = filter(None, (error, error.__cause__ or error.__context__))
        problem = " ".join(": ".join(str(each) or repr(each) for each in causes).split())
        loop.call_from_thread(lambda: reply.failed(problem))
    else:
        loop.call_from_thread(lambda: reply.done(fields))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
