"""Runs the scenarios under each launcher, and writes what came out into the table of README.md.

    python scenarios/outcomes.py                              # all of them, under all launchers
    python scenarios/outcomes.py --launcher pytest-elastic scenarios/worker scenarios/long
    python scenarios/outcomes.py --jobs 2                     # so many at a time (pytest-xdist)

Rows of scenarios that were not run keep what they said. `tests/plugin/test_scenario_library.py`
sees to it that every scenario has a row.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
LAUNCHERS = ("pytest-elastic", "torchrun", "torchrun-best")
BEGIN = "<!-- scenarios/outcomes.py: begin -->"
END = "<!-- scenarios/outcomes.py: end -->"
NOT_RUN = "–"
LACKING = "skipped: needs what this cluster lacks: "

# Scenario, as in "worker/crash-resume", to launcher to outcome.
Outcomes = dict[str, dict[str, str]]


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for, and write the table anew."""
    parser = argparse.ArgumentParser(description="Run scenarios and write their outcomes down.")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS)
    parser.add_argument("--jobs", type=int, default=1, help="how many to run at a time")
    parser.add_argument("paths", nargs="*", default=[str(HERE), str(HERE / "long")])
    options = parser.parse_args(arguments)
    for launcher in options.launcher or LAUNCHERS:
        found = read_table(README.read_text(encoding="utf-8"))
        for scenario, outcome in run(launcher, options.paths, jobs=options.jobs).items():
            found.setdefault(scenario, {})[launcher] = outcome
        write_table(found)
    return 0


def run(
    launcher: str,
    paths: Iterable[str],
    *,
    jobs: int = 1,
    options: Iterable[str] = (),
    enter: Callable[..., list[str]] = lambda *command: list(command),
) -> Mapping[str, str]:
    """Run scenarios under a launcher; returns what became of each.

    `options` are more of pytest's, and `enter` returns a command as it is run on another machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", *paths, f"--elastic-launcher={launcher}", *options,
            f"--junitxml={report}", "-p", "no:cacheprovider",
            *(["-n", str(jobs)] if jobs > 1 else []),
        ]  # fmt: skip
        subprocess.run(enter("env", "-C", str(HERE.parent), *command), check=False)
        cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314 (written by ourselves)
        return {name_of(case): outcome_of(case) for case in cases}


def name_of(case: ET.Element) -> str:
    """Return "worker/crash-resume" for a test case of pytest's report."""
    folder = case.get("classname", "").split(".")[1:-3]
    return "/".join([*folder, case.get("name", "")])


def outcome_of(case: ET.Element) -> str:
    """Return one word, and the first unmet clause if there is one."""
    if (skipped := case.find("skipped")) is not None:
        return f"skipped: {skipped.get('message', '')}"
    for failure in (*case.findall("failure"), *case.findall("error")):
        found = re.search(r"(INVALID|UNKNOWN): (.*)", failure.text or "")
        if found is None:
            return "error"
        clause = found[2].strip().replace("|", "/")
        return f"{found[1].lower()}: {clause[:60]}"
    return "valid"


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return where two clusters came to different outcomes, a line each.

    A scenario may be skipped on either for what that cluster lacks, and for no other reason.
    """
    found = []
    for scenario in sorted({*ours, *theirs}):
        pair = [outcomes.get(scenario, "not run") for outcomes in (ours, theirs)]
        if pair[0] != pair[1] and not any(each.startswith(LACKING) for each in pair):
            found.append(f"{scenario}: {pair[0]}; {pair[1]}")
    return found


def read_table(text: str) -> Outcomes:
    """Read the table that stands in the page; empty if there is none."""
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    if len(rows) < 2:
        return {}
    launchers = [cell.strip("`") for cell in rows[0][1:]]
    return {row[0].strip("`"): dict(zip(launchers, row[1:], strict=True)) for row in rows[2:]}


def write_table(outcomes: Outcomes) -> None:
    """Put a table into the page."""
    text = README.read_text(encoding="utf-8")
    begin, _, rest = text.partition(BEGIN)
    _, _, end = rest.partition(END)
    lines = [
        "| scenario | " + " | ".join(f"`{launcher}`" for launcher in LAUNCHERS) + " |",
        "|---" * (len(LAUNCHERS) + 1) + "|",
    ]
    for scenario in sorted(outcomes):
        cells = [outcomes[scenario].get(launcher, NOT_RUN) for launcher in LAUNCHERS]
        lines.append(f"| `{scenario}` | " + " | ".join(cells) + " |")
    README.write_text(f"{begin}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{end}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
