"""Files of tokens that a job's options name: read before anything starts, as launchers will."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.checks.option_checks import read_options
from elastic_harness.scenario.model import Job
from pytest_elastic.credentials import read_token_file
from pytest_elastic.errors import UsageError

__all__ = ["check_token_files"]

_OPTION: Final = "--rdzv-token-file"


def check_token_files(job: Job) -> Iterator[Finding]:
    """Yield a file that holds no token; a job runs where it is asked for, so paths begin there."""
    for each in read_options(job):
        if each.name == _OPTION and each.value is not None:
            try:
                read_token_file(os.path.join(os.getcwd(), each.value), said=_OPTION)
            except UsageError as error:
                yield Finding(path=each.path, message=error.message, suggestion=error.hint)
