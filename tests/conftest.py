"""What every test of this repository gets: pytester, bounded Hypothesis, and the leak check."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# A few dozen examples find what matters in a default run; `HYPOTHESIS_PROFILE=thorough` for a long
# look. No deadline: two shared cores make any single example slow now and then.
settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,
    derandomize=True,  # a default run is the same run twice; the thorough one is not
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test ends with the processes, descriptors, threads and files it began with.

    The place for the leak check, around every test. It does nothing yet: `elastic_harness.leaks`
    will give a snapshot to take here and a comparison to make after the `yield`.
    """
    yield  # noqa: PT022 - the comparison comes after it
