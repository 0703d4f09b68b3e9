"""Which machines there are, what a cluster on them can do, and what is wrong with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import Capabilities, ClusterEvent
from elastic_harness.cluster.machines.cluster import MachinesCluster
from elastic_harness.cluster.machines.facets import sign_in
from elastic_harness.cluster.machines.facts import (
    FOUND_OUT_THERE,
    OF_NAMESPACES,
    MachineFacts,
    facts_of_this_machine,
)
from elastic_harness.cluster.machines.folder_copies import pack_folder
from elastic_harness.cluster.machines.placement import (
    CallBack,
    CommandPlacement,
    Placement,
    command_placement,
    read_machines,
    ssh_placement,
)
from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["COMMAND", "MachinesChoice", "choose_machines", "compare_machines", "placement_of"]

COMMAND: Final = "command:"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesChoice:
    """A cluster on machines that have been asked; see `choose.Choice`."""

    placement: Placement
    capabilities: Capabilities
    reason: str
    copy: tuple[str, bytes] | None = None
    by_datagrams: bool = False

    @property
    def kind(self) -> str:
        """What `--elastic-cluster` calls this kind."""
        return self.placement.kind

    def make(
        self,
        loop: Loop,
        *,
        on_event: Callable[[ClusterEvent], None],
        preload: Sequence[str] = DEFAULT_PRELOAD,
    ) -> MachinesCluster:
        """Return a cluster of this kind; nothing is started."""
        return MachinesCluster(
            loop,
            self.placement,
            on_event=on_event,
            capabilities=self.capabilities,
            preload=preload,
            copy=self.copy,
            by_datagrams=self.by_datagrams,
        )

    def dismiss(self) -> None:
        """End the agents that wait for such a cluster."""
        self.placement.dismiss()


def placement_of(
    kind: str, *, hosts: str, call_back: str = "", ssh: str = "ssh"
) -> CommandPlacement:
    """Return how "ssh" or "command: ..." brings agents to the machines in a file.

    Raises UsageError.
    """
    called_at = CallBack.parse(call_back)
    if kind != "ssh" and not kind.startswith(COMMAND):
        raise UsageError(f"{kind!r} does not bring agents to machines: ssh and 'command: ...' do")
    if not hosts:
        raise UsageError("which machines? --elastic-hosts=FILE names them, one a line")
    machines = read_machines(hosts)
    if kind.startswith(COMMAND):
        return command_placement(kind.removeprefix(COMMAND).strip(), machines, call_back=called_at)
    return ssh_placement(machines, call_back=called_at, ssh=ssh)


def compare_machines(
    placement: Placement, *, preload: Sequence[str] = DEFAULT_PRELOAD
) -> list[tuple[str, MachineFacts | None, list[str]]]:
    """Ask all machines at once; returns what each is, and what is in the way of using it.

    The agents that have answered wait to be placed, or dismissed.
    """
    with contextlib.ExitStack() as signed, ThreadPoolExecutor(1) as pool:
        sign = ""
        with contextlib.suppress(OSError):  # no machine can see a folder that cannot be written
            sign = signed.enter_context(sign_in(os.getcwd()))
        finding = pool.submit(facts_of_this_machine, "")
        found = placement.survey(sign, preload)
    ours = finding.result()
    return [
        (name, None, [each])
        if isinstance(each, str)
        else (name, each, list(_differences(ours, each, preload)))
        for name, each in found.items()
    ]


def choose_machines(
    placement: Placement, *, preload: Sequence[str], overlay: str = "auto", copy: str = ""
) -> MachinesChoice:
    """Ask all machines what they are; raises UsageError unless all of them will do.

    With `overlay` "off", nodes are plain processes even where they could have networks; "udp" joins
    the networks by datagrams. `copy` is a folder that is brought to machines which do not have it.
    """
    archive = (copy, pack_folder(copy)) if copy else None
    compared = compare_machines(placement, preload=preload)
    problems = [f"  {name}: {each}" for name, _, found in compared for each in found]
    if problems:
        placement.dismiss()
        raise UsageError(
            "\n".join(["these machines cannot be used:", *problems]),
            hint="`pytest-elastic doctor` with the same options asks them again.",
        )
    facts = {name: each for name, each, _ in compared if each is not None}
    can = _what_they_can(facts_of_this_machine(""), facts, placement)
    if overlay == "off":
        why = "--elastic-overlay=off: nodes are plain processes in their machines' network"
        can.update(dict.fromkeys(OF_NAMESPACES, (False, why)))
    has_network, why = can["network"]
    can["gateway"] = _gateway(can["network"], placement)
    machines = ", ".join(facts)
    reason = f"nodes with networks of their own on {machines}"
    if not has_network:
        reason = f"plain processes on {machines}, because {why}"
    return MachinesChoice(
        placement=placement,
        capabilities=Capabilities.of(can),
        reason=reason,
        copy=archive,
        by_datagrams=overlay == "udp",
    )


def _gateway(network: tuple[bool, str], placement: Placement) -> tuple[bool, str]:
    """Tell whether nodes, which may have a network of their own, can connect to pytest."""
    if network[0]:
        here = choose_cluster().capabilities["network"]
        if not here.available:
            return False, f"this machine cannot join the network of nodes: {here.reason}"
        return True, "this machine joins the network of nodes"
    if not placement.call_back.is_here:
        host = placement.call_back.host
        return False, f"--elastic-call-back: {host} is no address of this machine"
    return True, "machines connect to pytest, and so can nodes"


def _differences(ours: MachineFacts, theirs: MachineFacts, preload: Sequence[str]) -> Iterator[str]:
    for name, here, there in (
        ("Python", ours.python, theirs.python),
        ("torch", ours.torch, theirs.torch),
    ):
        is_needed = name != "torch" or "torch" in preload
        if here != there and is_needed:
            yield f"{name} is {there or 'not installed'} there, and {here or 'not installed'} here"


def _what_they_can(
    ours: MachineFacts, facts: Mapping[str, MachineFacts], placement: Placement
) -> dict[str, tuple[bool, str]]:
    """Return all capabilities but `gateway`, which depends on what becomes of the network."""
    every = [ours, *facts.values()]
    has_our_clock = len({each.clock for each in every}) == 1
    has_our_kernel = len({each.boot_id for each in every}) == 1
    strangers = [name for name, each in facts.items() if not each.has_sign]
    return {
        **{name: _everywhere(name, ours, facts) for name in FOUND_OUT_THERE},
        "placement": placement.placing,
        "listeners": (True, "agents look for it"),
        "node_sockets": (True, "agents connect"),
        "common_clock": (
            has_our_clock,
            "all run on this machine's clock" if has_our_clock else "machines have their own",
        ),
        "same_kernel": (
            has_our_kernel,
            "all are this machine" if has_our_kernel else "they are different machines",
        ),
        "shared_files": (
            not strangers,
            f"{', '.join(strangers)} does not see {os.getcwd()}: call pytest in a shared folder"
            if strangers
            else "a file of ours was seen",
        ),
    }


def _everywhere(
    name: str, ours: MachineFacts, facts: Mapping[str, MachineFacts]
) -> tuple[bool, str]:
    """Tell whether all machines have a capability."""
    there = {machine: each.capabilities[name] for machine, each in facts.items()}
    lacking = [f"{machine}: {why}" for machine, (has_it, why) in there.items() if not has_it]
    if name == "clock_skew" and not lacking:
        # Launchers are told where it is, whatever machine they are on.
        _, here = ours.capabilities[name]
        lacking = [
            f"{machine}: {why}, and here {here}"
            for machine, (_, why) in there.items()
            if why != here
        ]
    return not lacking, "; ".join(lacking) or next(iter(there.values()))[1]
