"""What documents show must at least be well-formed, and name things that exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.house import tables

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "scenarios/*.md", "changelog.d/*.md")
    for path in ROOT.glob(pattern)
)
SHELLS = ("bash", "console", "sh", "shell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One block of code in a document."""

    line: int
    language: str
    text: str


def fences_in(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of a Markdown text."""
    for match in re.finditer(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 2
        yield Fence(line=line, language=match[1], text=match[2])


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell block, split into words, without comments and prompts."""
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|\|\||;|\|", line.removeprefix("$ ")):
            if words := shlex.split(command, comments=True):
                yield words


def problem_with(fence: Fence) -> str | None:
    """Say what is wrong with a block, if anything."""
    try:
        if fence.language == "python":
            ast.parse(fence.text)
        elif fence.language == "yaml":
            list(yaml.safe_load_all(fence.text))
        elif fence.language in SHELLS:
            return _problem_with_shell(fence.text.replace("\n$ ", "\n").removeprefix("$ "))
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return f"{fence.language}: {error}"
    return None


def _problem_with_shell(text: str) -> str | None:
    check = subprocess.run(
        ["bash", "-n"], input=text, capture_output=True, text=True, timeout=10, check=False
    )
    if check.returncode:
        return check.stderr
    for words in commands_in(text):
        for word in words:
            if re.match(r"(examples|tests|bench)/", word) and not (ROOT / word).exists():
                return f"there is no {word}"
        if words[0] == "pytest-elastic" and len(words) > 1 and words[1] not in subcommands():
            return f"pytest-elastic has no command {words[1]}: it has {subcommands()}"
    return None


def subcommands() -> list[str]:
    """Return what `pytest-elastic --help` lists, and its own options."""
    main = importlib.import_module("pytest_elastic.cli.main")
    return [*main._COMMANDS, "--help", "--version"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_in_documents_is_well_formed(path: Path) -> None:
    """Python parses, YAML loads, shell is shell, and its files and subcommands exist."""
    problems = [
        f"{path.relative_to(ROOT)}:{fence.line}: {problem}"
        for fence in fences_in(path.read_text(encoding="utf-8"))
        if (problem := problem_with(fence))
    ]
    assert problems == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    """Relative links name files that exist, as the site follows no links to folders."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    targets = [
        target.partition("#")[0]
        for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
        if not re.match(r"[a-z]+:|#", target)
    ]
    assert [target for target in targets if not (path.parent / target).is_file()] == []


def test_the_tables_quoted_in_the_architecture_are_the_ones_in_force() -> None:
    """`docs/architecture.md` quotes `rules.py`; `python -m tests.house.tables` prints the quote."""
    document = ROOT / "docs" / "architecture.md"
    text = document.read_text(encoding="utf-8")
    assert tables.BEGIN in text
    quoted = text.partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert quoted.strip() == tables.as_markdown()


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("python", "def f(:\n", "python: "),
        ("yaml", "a: [1\n", "yaml: "),
        ("bash", "echo 'one\n", "unexpected EOF"),
        ("console", "$ python examples/gone.py\n", "there is no examples/gone.py"),
        ("sh", "true && pytest-elastic fly --now\n", "has no command fly"),
    ],
)
def test_a_bad_block_is_found(language: str, text: str, expected: str) -> None:
    """One planted fault for each kind of block."""
    (fence,) = fences_in(f"Words.\n\n```{language}\n{text}```\n")
    assert fence.line == 4
    assert expected in str(problem_with(fence))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "x: int = 1\n"),
        ("yaml", "a: 1\n---\nb: [1, 2]\n"),
        ("bash", "pytest-elastic --help  # and more\n"),
        ("console", "$ pytest-elastic run --standalone \\\n    examples/train.py\n"),
        ("text", "anything ' goes\n"),
    ],
)
def test_a_good_block_is_fine(language: str, text: str) -> None:
    """No false alarms."""
    (fence,) = fences_in(f"```{language}\n{text}```\n")
    assert problem_with(fence) is None
