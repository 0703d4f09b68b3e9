"""Where ranks were when they were stopped, read from what faulthandler wrote."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Place", "brief", "names", "place_in", "who_is_missing"]

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_HERE = f"{os.sep}elastic_harness{os.sep}ranks{os.sep}chaos.py"
_DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_RUNNER = re.compile(
    r"[/\\](_pytest|pluggy|pytest_elastic[/\\]plugin|elastic_harness[/\\]ranks)[/\\]|[/\\]bin[/\\]"
)
_LEFT_OUT = "  ... (frames of pytest)"
_STANDARD = sysconfig.get_path("stdlib") + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's, and the function of torch.distributed that it waits in, or ""."""

    file: str
    line: int
    function: str
    collective: str = ""

    def __str__(self) -> str:
        where = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        return f"in {self.collective} ({where})" if self.collective else f"at {where}"


def place_in(stacks: str) -> Place | None:
    """Return where the main thread was, None where no frame of the user's is in its stack."""
    # The main thread is the last one that is shown.
    *_, main = re.split(r"(?m)^(?:Current thread|Thread) .*\n", stacks)
    collective = ""
    for file, line, function in _FRAME.findall(main):
        if _DISTRIBUTED in file:
            # Decorators of torch stand between a call and what is called.
            collective = function if function != "wrapper" else collective
        elif file.endswith(_HERE):
            collective = "elastic_chaos"
        elif _RUNNER.search(file):
            continue
        elif not _INSTALLED.search(file) and not file.startswith(_STANDARD):
            return Place(file, int(line), function, collective)
    return None


def brief(stacks: str) -> str:
    """Return the stacks without the frames of pytest, which are the same in every test."""
    lines = [line for line in stacks.splitlines() if not line.startswith("Extension modules:")]
    kept = []
    for line in lines:
        found = _FRAME.match(line)
        is_ours = found is not None and _RUNNER.search(found[1]) is not None
        if not is_ours:
            kept.append(line)
        elif kept and kept[-1] != _LEFT_OUT:
            kept.append(_LEFT_OUT)
    return "\n".join(kept).strip()


def who_is_missing(places: Mapping[int, Place | None]) -> str:
    """Say which ranks are not where most of those that wait are; "" if nothing tells them apart."""
    waiting = [place for place in places.values() if place is not None and place.collective]
    if not waiting:
        return ""
    most = max(waiting, key=waiting.count)
    there = [rank for rank, place in places.items() if place == most]
    missing = [rank for rank, place in places.items() if place != most]
    if not missing:
        return ""
    each = "; ".join(f"rank {rank} is {places[rank] or 'elsewhere'}" for rank in missing)
    return f"{names(missing)} did not come to where {names(there)} waited, {most}: {each}"


def names(ranks: Sequence[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
