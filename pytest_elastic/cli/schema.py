"""`pytest-elastic schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from pytest_elastic.cli.extensions import add_option, registries

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic schema",
        description="Print the JSON Schema of *.elastic.yaml files.",
        epilog="Save it, and begin a scenario with '# yaml-language-server: $schema=FILE'.",
    )
    add_option(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the schema."""
    given = build_parser().parse_args(argv)
    from elastic_harness.scenario.reading.schema import json_schema

    print(json.dumps(json_schema(*registries(given.conftest)), indent=2))
    return 0
