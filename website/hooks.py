"""What mkdocs does for the site beside its plugins: it shows what commands print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile

_OUTPUT = re.compile(r"^<!-- output of: (.+?)(?: \| (.+?))? -->$", re.MULTILINE)
_LIMIT_S = 120.0


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each `<!-- output of: COMMAND -->` by what the command prints.

    `COMMAND | PATTERN` shows only the paragraphs in which the regular expression is found.
    """
    return _OUTPUT.sub(lambda found: _printed_by(found[1], found[2] or ""), markdown)


def _printed_by(command: str, pattern: str) -> str:
    """Run a command and return its output as a block; one that fails ends the build."""
    ran = subprocess.run(
        shlex.split(command),
        env={**os.environ, "COLUMNS": "88", "NO_COLOR": "1"},
        cwd=tempfile.gettempdir(),  # a user's pytest, which reads no conftest.py of this project
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if ran.returncode:
        message = f"cannot build the site: {command!r} ended with {ran.returncode}:\n{ran.stderr}"
        raise RuntimeError(message)
    language = "json" if ran.stdout.startswith("{") else "text"
    paragraphs = re.split(r"\n{2,}", ran.stdout.strip("\n"))
    shown = [each for each in paragraphs if re.search(pattern, each)]
    if not shown:
        message = f"cannot build the site: {command!r} prints no paragraph with {pattern!r}"
        raise RuntimeError(message)
    return "\n".join([f"````{language}", "\n\n".join(shown), "````"])
