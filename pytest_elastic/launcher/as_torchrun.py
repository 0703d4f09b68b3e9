"""`main` and `run` of `torch.distributed.run`, for tools that call these in their own process.

`accelerate launch` hands `run` what torch's parser has read; Lightning's `fabric run` and the
command `torchrun` call `main`. Both end as torch's do: they return when the job has succeeded and
raise torch's ChildFailedError when it failed. Where torch raises something else (a wrong option, a
rendezvous that does not come about, a signal), they raise SystemExit with the launcher's exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_elastic.cli.option_table import OPTIONS
from pytest_elastic.cli.run import read_config
from pytest_elastic.errors import ElasticError
from pytest_elastic.launcher.call import run_node
from pytest_elastic.printed import printable_lines
from pytest_elastic.rendezvous.model import Failure

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

__all__ = ["main", "run"]


def main(args: Sequence[str] | None = None) -> None:
    """Launch what a command line of torchrun (`sys.argv` by default) asks for."""
    _launch(sys.argv[1:] if args is None else args)


def run(args: argparse.Namespace) -> None:
    """Launch what was read by torch's parser, or by one that another tool has made from it."""
    from torch.distributed.run import get_args_parser

    _launch([*_words(args, get_args_parser()), args.training_script, *args.training_script_args])


def _words(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options that differ from torch's defaults; those may be `PET_` variables'."""
    for option in OPTIONS:
        value = getattr(args, option.dest, None)
        if value is None or option.is_ours or value == parser.get_default(option.dest):
            continue
        if option.dest == "node_rank" and args.rdzv_backend != "static":
            continue  # torchrun ignores it then
        if option.is_flag:
            yield from [option.flags[-1]] if value else []
        else:
            yield f"{option.flags[-1]}={value}"
    if not getattr(args, "use_env", True):
        yield "--pass-local-rank"  # as torch.distributed.launch


def _launch(argv: Sequence[str]) -> None:
    try:
        outcome = run_node(read_config(argv, os.environ))
    except ElasticError as error:
        sys.stderr.write(printable_lines(f"pytest-elastic run: {error}") + "\n")
        raise SystemExit(error.exit_code) from error
    if outcome.first_failure is not None and outcome.result == "failed":
        raise _child_failed(outcome.first_failure)
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)


def _child_failed(failure: Failure) -> ChildFailedError:
    """Return the exception by which torch says that a worker failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    theirs = ProcessFailure(
        local_rank=failure.local_rank, pid=failure.pid, exitcode=failure.exit_code, error_file=""
    )
    theirs.message = failure.message or theirs.message
    theirs.timestamp = failure.timestamp or theirs.timestamp
    theirs.error_file_data = {**failure.error_file_data}
    if os.path.isfile(failure.error_file):  # on this node, and not removed with its folder
        theirs.error_file = failure.error_file
    return ChildFailedError(f"pytest-elastic on node {failure.node}", {failure.rank: theirs})
