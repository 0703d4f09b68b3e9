"""What all tests here share."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _launchers_are_forked(launch_server: None) -> None:
    """Fork the launchers that tests here start, but for those that are to be executed."""
