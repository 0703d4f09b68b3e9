"""`pytest-elastic doctor`: what this machine can do for the harness, and why not more."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic doctor",
        description="Find out, by trying, what clusters this machine can have.",
    )
    parser.add_argument(
        "--cluster", choices=("auto", "namespace", "process"), default="auto", help="which kind"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Build a node for trial and print what works; what does not, by its reason."""
    kind: str = build_parser().parse_args(argv).cluster
    from elastic_harness.cluster.choose import choose_cluster
    from elastic_harness.cluster.cluster import CAPABILITIES
    from elastic_harness.cluster.remedies import remedy

    choice = choose_cluster(kind)
    print(f"{choice.cluster.kind} cluster: {choice.reason}")
    missing: dict[str, list[str]] = {}
    for entry in choice.capabilities.entries:
        if entry.available:
            print(f"  yes  {entry.name}: {CAPABILITIES[entry.name]}")
        else:
            missing.setdefault(entry.reason, []).append(entry.name)
    for reason, names in missing.items():
        for name in names:
            print(f"  no   {name}: {CAPABILITIES[name]}")
        print(f"       because: {reason}")
        advice = remedy(reason)
        if advice is not None:
            print(f"       try: {advice}")
    return 0
