"""The order of a warm interpreter travels in one variable and leaves no trace."""

from __future__ import annotations

import pytest

from pytest_elastic.boot.order import VARIABLE, WarmOrder, encode_order, restore, take_order
from pytest_elastic.boot.spawn import SITE_FOLDER, command_and_environ
from pytest_elastic.errors import InternalError


def test_an_order_is_taken_as_it_was_given() -> None:
    """Role, argument and modules arrive, and the variable is gone."""
    order = WarmOrder(role="m:f", argument={"a": [1, None]}, preload=("torch",), replaced={"X": ""})
    environ = {VARIABLE: encode_order(order), "HOME": "/h"}
    assert take_order(environ) == order
    assert environ == {"HOME": "/h"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"preload": []}', "no json"])
def test_what_is_no_order_is_our_own_mistake(text: str) -> None:
    """Nobody else sets the variable."""
    with pytest.raises(InternalError, match="does not hold an order"):
        take_order({VARIABLE: text})


def test_what_the_start_replaced_is_given_back() -> None:
    """The role sees the caller's environment, with nothing of ours in it."""
    base = {"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "8", "HOME": "/h"}
    command, environ = command_and_environ("m:f", {}, base_environ=base, python="/usr/bin/python")
    assert command[0] == "/usr/bin/python"
    assert (environ["PYTHONPATH"], environ["OMP_NUM_THREADS"]) == (SITE_FOLDER, "1")
    restore(take_order(environ), environ)
    assert environ == base


def test_an_interpreter_that_is_not_held_gets_the_environment_as_it_is() -> None:
    """Only the order itself is added, and nothing is imported first."""
    base = {"PYTHONPATH": "/mine", VARIABLE: "an old one"}
    _, environ = command_and_environ("m:f", {}, base_environ=base, hold=False)
    order = take_order(environ)
    assert environ == {"PYTHONPATH": "/mine"}
    assert (order.preload, dict(order.replaced)) == ((), {})
