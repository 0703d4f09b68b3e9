"""The command `pytest-elastic`: finds the subcommand and lets it work.

Imports nothing that costs until it is known what is wanted: `--help` answers in a few dozen
milliseconds, and torch is never imported here.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from pytest_elastic.errors import ElasticError, InternalError
from pytest_elastic.printed import printable_lines
from pytest_elastic.unread import until_unread

__all__ = ["main"]

# name -> (module with `main(argv) -> int` and `build_parser()`, what it does)
_COMMANDS = {
    "run": ("pytest_elastic.cli.run", "run a training program on one or many nodes"),
    "chaos": ("pytest_elastic.cli.chaos", "check a training script by faults, or run scenarios"),
    "init": ("pytest_elastic.cli.init", "write a first test, scenario and CI workflow"),
    "check": ("pytest_elastic.cli.check", "judge a recorded run again"),
    "doctor": ("pytest_elastic.cli.doctor", "say what this machine can do, and why not more"),
    "schema": ("pytest_elastic.cli.schema", "print the JSON Schema of scenario files"),
    "install-shim": (
        "pytest_elastic.cli.install_shim",
        "write a command torchrun that is `pytest-elastic run`",
    ),
    "toxiproxy": ("pytest_elastic.cli.toxiproxy", "serve TCP proxies with faults, over HTTP"),
}


def _usage() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {help_text}" for name, (_, help_text) in _COMMANDS.items()]
    return "\n".join(
        (
            "usage: pytest-elastic COMMAND ...",
            "",
            *lines,
            "",
            "'pytest-elastic COMMAND --help' tells more.",
        )
    )


def _complain(text: str) -> None:
    """Print the error; if stderr is closed, the exit code still tells."""
    try:
        sys.stderr.write(f"{printable_lines(text)}\n")
        sys.stderr.flush()
    except OSError:
        # What is left in the buffer would fail again when the interpreter ends, with another code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _open_closed_streams() -> None:
    """Have all three standard streams, as after `2>&-`.

    A socket would else take the number of one that is closed, and be written to.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (to the end)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _end_on_signals() -> None:
    """Have signals end this process that would end it if it were not the first of its container.

    The kernel drops a signal to the first process of a pid namespace that has no handler for it.
    SIGINT has one: Python's. An agent replaces these by its own (`agent.signals`).
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:
            # Not by an exception: it could be raised, and be lost, in the middle of an import.
            signal.signal(number, lambda number, _: os._exit(128 + number))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and return the exit code."""
    if argv is None:
        _open_closed_streams()
    if argv is None and os.getpid() == 1:
        _end_on_signals()
    if argv is None and "_ARGCOMPLETE" in os.environ:
        from pytest_elastic.cli.completion import complete

        complete(_COMMANDS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    return until_unread(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from pytest_elastic import __version__

        print(f"pytest-elastic {__version__}")
        return 0
    name, *rest = arguments
    if name not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        _complain(f"pytest-elastic: there is no command {name!r}; known are {known}")
        return 2
    try:
        os.getcwd()
    except FileNotFoundError:
        _complain(f"pytest-elastic {name}: the folder that this was called in is gone")
        return 2
    try:
        result: int = import_module(_COMMANDS[name][0]).main(rest)
    except ElasticError as error:
        _complain(f"pytest-elastic {name}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        # Only while something is being imported or read: a running agent handles the signal.
        return 128 + signal.SIGINT
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOSPC):
            raise  # of its output: see `until_unread`
        return _end_by_a_bug(name, error)
    except Exception as error:  # noqa: BLE001 (Python's own exit code, 1, means a job that failed)
        return _end_by_a_bug(name, error)
    return result


def _end_by_a_bug(name: str, error: Exception) -> int:
    import traceback

    from pytest_elastic.cli.hidden_module import hidden_module

    if (hidden := hidden_module(error)) is not None:
        _complain(f"pytest-elastic {name}: {hidden}")
        return hidden.exit_code
    _complain("".join(traceback.format_exception(error)).rstrip())
    bug = InternalError(f"it ended by an unexpected {type(error).__name__}")
    _complain(f"pytest-elastic {name}: {bug}")
    return bug.exit_code
