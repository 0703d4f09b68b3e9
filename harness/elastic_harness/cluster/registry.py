"""Which kinds of cluster there are, by the names that `--elastic-cluster` calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from elastic_harness.cluster.choose import ClusterChoice, choose_cluster
from elastic_harness.cluster.machines.choose import COMMAND, choose_machines, placement_of
from elastic_harness.cluster.machines.placement import CallBack, Placement
from elastic_harness.cluster.machines.ray_placement import RayPlacement
from elastic_harness.registry import Registry
from pytest_elastic.errors import UsageError

__all__ = ["ClusterKind", "ClusterOptions", "ClusterRegistry", "built_in_clusters"]


class ClusterOptions(Protocol):
    """What was asked for beside the kind: the options `--elastic-...` of these names."""

    @property
    def hosts(self) -> str:
        """The path of a file that names machines, or ""."""

    @property
    def call_back(self) -> str:
        """Where machines reach this one, or ""."""

    @property
    def ssh(self) -> str:
        """The ssh that is used, with options."""

    @property
    def ray(self) -> str:
        """The address of a Ray cluster, or "" for one of our own."""

    @property
    def ray_machines(self) -> int:
        """How many of its machines are used; 0: all that have a processor."""

    @property
    def overlay(self) -> str:
        """Whether nodes on machines have networks of their own: "auto" (where they can), "off".

        "udp": as "auto", and trunks between machines are datagrams.
        """

    @property
    def copy(self) -> str:
        """A folder that is copied to machines which do not have it, or ""."""

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules that workers find imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKind:
    """A kind of cluster; `choose` finds out whether it can be had, and raises UsageError if not.

    It is called once in a session, before the first run.
    """

    name: str
    choose: Callable[[ClusterOptions], ClusterChoice]


class ClusterRegistry(Registry[ClusterKind]):
    """The kinds of cluster, to which users add theirs; "command: ..." is one for each command."""

    kind: ClassVar[str] = "kind of cluster"

    def add(self, new: ClusterKind) -> None:
        """Make a kind known under its name; raises UsageError if that is taken."""
        if new.name.startswith(COMMAND):
            raise UsageError(f"no {self.kind} can be called {new.name!r}: that is a command")
        super().add(new)

    def find(self, name: str) -> ClusterKind:
        """Return what has this name; raises UsageError with all names."""
        if name.startswith(COMMAND):
            return ClusterKind(name=name, choose=partial(_on_machines, name))
        if name not in self._known:
            raise UsageError(f"expected {', '.join(self.names)} or '{COMMAND} ...'")
        return self._known[name]


def built_in_clusters() -> ClusterRegistry:
    """Return a registry of the kinds that come with the harness."""
    return ClusterRegistry(
        (
            *(
                ClusterKind(name=name, choose=partial(_on_this_machine, name))
                for name in ("auto", "namespace", "process")
            ),
            ClusterKind(name="ssh", choose=partial(_on_machines, "ssh")),
            ClusterKind(name="ray", choose=_by_ray),
        )
    )


def _on_this_machine(name: str, _: ClusterOptions) -> ClusterChoice:
    return choose_cluster(name)


def _on_machines(name: str, options: ClusterOptions) -> ClusterChoice:
    placement = placement_of(
        name, hosts=options.hosts, call_back=options.call_back, ssh=options.ssh
    )
    return _on_placement(placement, options)


def _on_placement(placement: Placement, options: ClusterOptions) -> ClusterChoice:
    return choose_machines(
        placement, preload=options.preload, overlay=options.overlay, copy=options.copy
    )


def _by_ray(options: ClusterOptions) -> ClusterChoice:
    placement = RayPlacement(
        options.ray, count=options.ray_machines, call_back=CallBack.parse(options.call_back)
    )
    return _on_placement(placement, options)
