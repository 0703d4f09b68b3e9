"""Print what is long and what is scattered, for a person to look at: `python -m tests.house.sizes`.

No size is a rule: an idea in nine files of sixty lines is as hard to follow as one of a thousand.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from pathlib import Path

from tests.house.source_tree import read_tree

__all__ = ["report"]

_SHOWN = 15


def report(root: Path) -> str:
    """Return the longest files and functions, the fullest folders, and the medians."""
    tree = read_tree(root)
    files = {source.path: source.text.count("\n") for source in tree.sources.values()}
    functions = {
        f"{source.path}::{function.qualified_name}": function.lines
        for source in tree.sources.values()
        for function in source.functions()
    }
    folders = Counter(path.rpartition("/")[0] for path in files)
    lines = [
        f"{len(found)} {what}, median {statistics.median(found.values()):g} lines"
        for what, found in (("files", files), ("functions", functions))
    ]
    for what, measured in (("files", files), ("functions", functions), ("folders", folders)):
        lines += ["", f"largest {what}"]
        longest = sorted(measured.items(), key=lambda item: -item[1])[:_SHOWN]
        lines += [f"{size:6}  {name}" for name, size in longest]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report(Path(__file__).parents[2]) + "\n")
