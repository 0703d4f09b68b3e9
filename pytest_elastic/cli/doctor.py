"""`pytest-elastic doctor`: what this machine can do for the harness, and why not more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_elastic.cli.extensions import add_cluster_option, find_cluster

if TYPE_CHECKING:
    from elastic_harness.cluster.machines.placement import Placement

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic doctor",
        description="Find out, by trying, what clusters this machine can have.",
    )
    add_cluster_option(parser, "auto, namespace, process, or any other that pytest takes here")
    parser.add_argument(
        "--machines", metavar="FILE", default="", help="ask other machines, one a line, by ssh"
    )
    parser.add_argument(
        "--ssh", metavar="COMMAND", default="ssh", help="the ssh that is used, with options"
    )
    parser.add_argument(
        "--command",
        metavar="COMMAND",
        default="",
        help="another command, with $machine and $agent in it, such as 'srun -w $machine $agent'",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        default="",
        help="ask the machines of a Ray cluster, by Ray: HOST:PORT, or auto for the one of this",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Build a node for trial and print what works; what does not, by its reason."""
    given = build_parser().parse_args(argv)
    kind: str = given.cluster or "auto"
    if given.machines or given.ray:
        return _ask_machines(_placement(given))
    from elastic_harness.cluster.cluster import CAPABILITIES
    from elastic_harness.cluster.remedies import remedy

    choice = find_cluster(kind)
    print(f"{choice.kind} cluster: {choice.reason}")
    missing: dict[str, list[str]] = {}
    for entry in choice.capabilities.entries:
        if entry.available:
            print(f"  yes  {entry.name}: {CAPABILITIES.get(entry.name, entry.reason)}")
        else:
            missing.setdefault(entry.reason, []).append(entry.name)
    for reason, names in missing.items():
        for name in names:
            print(f"  no   {name}: {CAPABILITIES.get(name, 'one of its own')}")
        print(f"       because: {reason}")
        advice = remedy(reason)
        if advice is not None:
            print(f"       try: {advice}")
    return 0


def _placement(given: argparse.Namespace) -> Placement:
    from elastic_harness.cluster.machines.choose import placement_of
    from elastic_harness.cluster.machines.placement import CallBack
    from elastic_harness.cluster.machines.ray_placement import RayPlacement

    if given.ray:
        return RayPlacement(given.ray, count=0, call_back=CallBack())
    way = f"command: {given.command}" if given.command else "ssh"
    return placement_of(way, hosts=given.machines, ssh=given.ssh)


def _ask_machines(placement: Placement) -> int:
    """Print what each machine says of itself; 1 if one of them cannot be used."""
    from elastic_harness.cluster.machines.choose import compare_machines

    is_well = True
    compared = compare_machines(placement)
    placement.dismiss()
    for machine, facts, problems in compared:
        print(f"{machine}: {'cannot be used' if problems else 'can be used'}")
        is_well = is_well and not problems
        for problem in problems:
            print(f"  {problem}")
        if facts is not None:
            versions = f"Python {facts.python}, pytest-elastic {facts.pytest_elastic}"
            print(f"  {facts.hostname}: {versions}, torch {facts.torch or 'not installed'}")
            seen = "seen there" if facts.has_sign else "not seen there"
            print(f"  the files of this folder are {seen}")
            for name, (available, reason) in facts.capabilities.items():
                print(f"  {'yes' if available else 'no '}  {name}: {reason}")
    return 0 if is_well else 1
