"""What a greeting is judged by: same job, same settings, same round, a name of its own (R14)."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Container, Mapping

from pytest_elastic.rendezvous.messages import Hello
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.peer import Peer, Standing

__all__ = ["difference", "free_name", "resumes", "settings_as_values"]

_SETTINGS = tuple(field.name for field in dataclasses.fields(Settings))
_values_of = operator.attrgetter(*_SETTINGS)


def settings_as_values(settings: Settings) -> Mapping[str, float | str]:
    """Return the settings as they go into a greeting."""
    return dict(zip(_SETTINGS, _values_of(settings), strict=True))


def difference(hello: Hello, settings: Settings) -> str | None:
    """Say why a node is not of this job or wants it to be run differently; None if it is fine."""
    act = f"cannot join run {settings.run_id!r} as node {hello.node.name!r}: "
    if hello.run_id != settings.run_id:
        return act + f"it belongs to run {hello.run_id!r}. Another job uses this endpoint."
    expected = settings_as_values(settings)
    if hello.settings == expected:
        return None
    differences = [
        f"{name} is {_shown(hello.settings.get(name))} there and {_shown(expected.get(name))} here"
        for name in sorted({*expected, *hello.settings})
        if hello.settings.get(name) != expected.get(name)
    ]
    if not differences:
        return None
    return (
        act + "its settings differ from the coordinator's: " + "; ".join(differences) + ". "
        "Give all nodes the same options."
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, int | float) else repr(value)


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name` with the smallest suffix, from -2 on, that nobody has."""
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def resumes(peer: Peer, hello: Hello) -> bool:
    """Tell whether a member that greets again is where we left it.

    Without workers by our account, it is, whatever it missed: it will be told again. With workers,
    only if it stands by the very round we gave it; else it has fenced itself.
    """
    if peer.standing in {Standing.WAITING, Standing.SEALED}:
        return True
    return hello.resumes_round == peer.round
