"""What is launched on the nodes of a run, and what each of them is told."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic_harness.cluster.process import ProcessSpec
from elastic_harness.scenario.job_spec import ProxySpec, environ_name
from elastic_harness.scenario.launchers import JobPlan, Launcher, NodePlan
from elastic_harness.scenario.stage.log_source import log_source_of

__all__ = ["StagePlan", "command_spec", "launcher_spec"]

# What leads to the run's own observer: the probe in workers, and the events of our launcher.
_OBSERVING = frozenset({"ELASTIC_PROBE_SOCKET", "ELASTIC_PROBE_STEP", "PYTEST_ELASTIC_EVENTS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What is launched, and where its traces go.

    `environ` is the whole environment of a launcher, save what is the node's own. `shared` are
    directories that every node sees as the host does, `read_only` what is not the job's own and
    may not be written; `resources` and `labels` are what machines of nodes have to have;
    `endpoints` the nodes at the rendezvous
    endpoints, one as a rule; `data_folders` those of the directories whose files are
    the job's own, to be lost or damaged, the checkpoint directory first. `launch_environs` give
    what faults need of a launcher's environment, for the node's folder of logs.
    """

    launcher: Launcher
    job: JobPlan
    environ: Mapping[str, str]
    cwd: str
    log_dir: str
    shared: Sequence[str]
    endpoints: Sequence[str]
    read_only: Sequence[str] = ()
    data_folders: Sequence[str] = ()
    launch_environs: Sequence[Callable[[str], Mapping[str, str]]] = ()
    preloaded: bool = True
    sysctls: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    proxies: Mapping[str, ProxySpec] = field(default_factory=dict)
    patience: float = 1.0
    seed: int = 0

    @property
    def store_host(self) -> str:
        """The node at the endpoint, or at the first of several."""
        return self.endpoints[0]

    def log_dir_of(self, node: str) -> str:
        """Return the folder for what a node says."""
        return os.path.join(self.log_dir, node)

    def launcher_log_of(self, node: str) -> str:
        """Return the file for what a node's launcher and its workers print."""
        return os.path.join(self.log_dir_of(node), "launcher.log")

    def clock_file_of(self, node: str) -> str:
        """Return the file that a node's processes have for a clock, where faults need one."""
        return os.path.join(self.log_dir_of(node), "clock")

    def log_source_of(self, file: str, line: str) -> str | int | None:
        """Return whose line of a node's log it is (see `log_source`)."""
        own = self.launcher.own_lines
        return log_source_of(
            file,
            line,
            own_lines=re.compile(own) if own else None,
            are_apart=self.job.are_workers_apart,
        )


def launcher_spec(
    plan: StagePlan,
    node: str,
    *,
    address: str,
    index: int,
    endpoint_hosts: Sequence[str],
    has_names: bool,
    proxies: Mapping[str, str],
    rendezvous_proxy: str,
) -> ProcessSpec:
    """Return the launcher of a node, which is the `index`-th (from 0).

    Without `has_names` all nodes share the host's loopback, and must be told who they are. All
    nodes but the store host meet at `rendezvous_proxy`, if there is one; `proxies` are addresses
    by name, for the job to find.
    """
    conf = dict(plan.job.conf)
    endpoint_port = plan.job.endpoint_port
    if not has_names or rendezvous_proxy:
        # An address alone does not tell whose it is.
        conf["is_host"] = "true" if node == plan.store_host else "false"
    if rendezvous_proxy and node != plan.store_host:
        host, _, port = rendezvous_proxy.rpartition(":")
        endpoint_hosts, endpoint_port = (host,), int(port)
    launcher = plan.launcher
    argv = launcher.argv(
        replace(plan.job, endpoint_hosts=endpoint_hosts, endpoint_port=endpoint_port, conf=conf),
        NodePlan(name=node, address=address, index=index, log_dir=plan.log_dir_of(node)),
    )
    log = plan.launcher_log_of(node)
    return ProcessSpec(
        argv=argv,
        environ={
            **_environ(plan, node),
            **{environ_name(name): where for name, where in proxies.items()},
            **launcher.environ,
            **({} if has_names else {"PET_NODE_NAME": node}),
        },
        cwd=plan.cwd,
        stdout=log,
        stderr=log,
        logs=plan.log_dir_of(node),
        preloaded_entry=launcher.preloaded_entry if plan.preloaded else None,
        preloaded_role=launcher.preloaded_role if plan.preloaded else None,
    )


def command_spec(plan: StagePlan, node: str, argv: Sequence[str], *, name: str) -> ProcessSpec:
    """Return another command on a node, in a launcher's surroundings; it writes into `name`.log.

    `python` is this interpreter there, as it is the launchers'. What it starts is not observed.
    """
    log = os.path.join(plan.log_dir_of(node), f"{name.replace('#', '-')}.log")
    environ = {key: text for key, text in _environ(plan, node).items() if key not in _OBSERVING}
    folders = (os.path.dirname(sys.executable), environ.get("PATH"))
    environ["PATH"] = ":".join(folder for folder in folders if folder)
    return ProcessSpec(argv=argv, environ=environ, cwd=plan.cwd, stdout=log, stderr=log)


def _environ(plan: StagePlan, node: str) -> dict[str, str]:
    more: dict[str, str] = {}
    for environ_for in plan.launch_environs:
        more.update(environ_for(plan.log_dir_of(node)))
    return {
        **plan.environ,
        "ELASTIC_NODE": node,
        "ELASTIC_LAUNCHER": plan.launcher.name,
        "HOSTNAME": node,
        **more,
    }
