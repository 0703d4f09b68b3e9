"""Small worlds, in every order."""

from __future__ import annotations

import pytest
from elastic_simulation.__main__ import main
from elastic_simulation.explorer import SITUATIONS, explore, play

from tests.simulation.planted import PLANTED


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_order_of_a_few_choices_breaks_a_promise(name: str) -> None:
    """All of them, from each situation; deeper by the command."""
    result = explore(SITUATIONS[name], depth=3)
    assert result.is_complete
    assert result.states > 3
    assert result.found == []


def test_a_planted_fault_is_found_in_some_order() -> None:
    """And the choices that are named find it again."""
    situation = SITUATIONS["ending"]
    with PLANTED["joins-a-round-again"].planted():
        found = explore(situation, depth=4).found
        assert found
        *_, message = play(situation, found[0].choices)
        assert message
    *_, message = play(situation, found[0].choices)
    assert not message


def test_few_deviations_go_deep() -> None:
    """One choice that is not the first, anywhere among thirty."""
    result = explore(SITUATIONS["losing"], depth=30, deviations=1)
    assert result.is_complete
    assert result.states > 100
    assert result.found == []


def test_a_bound_on_executions_is_said() -> None:
    """An exploration that was cut short is not complete."""
    assert not explore(SITUATIONS["restarting"], depth=9, max_executions=20).is_complete


def test_the_command_tells_one_order_again(capsys: pytest.CaptureFixture[str]) -> None:
    """`--choices` is what a finding names."""
    assert main(["explore", "--situation", "restarting", "--choices", "1,0,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "restarting [1, 0, 2]: kept"
    assert any("round_sealed round=2" in line for line in lines)
