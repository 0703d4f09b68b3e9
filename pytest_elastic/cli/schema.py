"""`pytest-elastic schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the schema."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic schema",
        description="Print the JSON Schema of *.elastic.yaml files.",
        epilog="Save it, and begin a scenario with '# yaml-language-server: $schema=FILE'.",
    )
    parser.parse_args(argv)
    from elastic_harness.faults.registry import built_in_faults
    from elastic_harness.scenario.schema import json_schema

    print(json.dumps(json_schema(built_in_faults()), indent=2))
    return 0
