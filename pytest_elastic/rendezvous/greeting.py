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
# What a user says to give each setting its value; what is not here is a setting of --rdzv-conf.
_NODES = "--nnodes"
_OPTIONS = {
    "min_nodes": _NODES,
    "max_nodes": _NODES,
    "max_restarts": "--max-restarts",
    "shutdown_timeout_s": "--shutdown-timeout",
    "failure_grace_s": "--failure-grace",
    "endpoints": "--rdzv-endpoint",
    "last_call_s": "--rdzv-conf last_call_timeout",
    "quorum": "--rdzv-conf quorum (or, without it, what follows from --nnodes and --rdzv-endpoint)",
}
_ONE_ENDPOINT = "a single one"


def settings_as_values(settings: Settings) -> Mapping[str, float | str]:
    """Return the settings as they go into a greeting."""
    return dict(zip(_SETTINGS, _values_of(settings), strict=True))


def difference(hello: Hello, settings: Settings, decider: str) -> str | None:
    """Say why a node is not of this job or wants it to be run differently; None if it is fine.

    `decider` is the name of the node that decides, whose settings these are.
    """
    name = hello.node.name
    act = f"cannot join run {settings.run_id!r} as node {name!r}: "
    if hello.run_id != settings.run_id:
        return act + f"it belongs to run {hello.run_id!r}. Another job uses this endpoint."
    expected = settings_as_values(settings)
    if hello.settings == expected:
        return None
    theirs, ours = _as_said(hello.settings), _as_said(expected)
    # Two nodes that were given no name have that of their host, which may be one.
    is_named = name != decider
    there, here = (name, decider) if is_named else ("this node", "the node that decides")
    differences = [
        f"{option} is {theirs.get(option, 'unknown')} on {there} "
        f"and {ours.get(option, 'unknown')} on {here}"
        for option in sorted({*ours, *theirs})
        if theirs.get(option) != ours.get(option)
    ]
    if not differences:
        return None
    return (
        f"{act}its settings differ from those of {here}{', which decides' if is_named else ''}: "
        f"{'; '.join(differences)}. Give all nodes the same options."
    )


def _as_said(values: Mapping[str, float | str]) -> Mapping[str, str]:
    """Return the settings in a greeting as a user gives them: by option, as text."""
    said = {
        _OPTIONS.get(name, f"--rdzv-conf {name.removesuffix('_s')}"): _shown(name, value)
        for name, value in values.items()
        if name != "run_id" and _OPTIONS.get(name) != _NODES
    }
    if "min_nodes" in values and "max_nodes" in values:
        low, high = (_shown(name, values[name]) for name in ("min_nodes", "max_nodes"))
        said[_NODES] = low if low == high else f"{low}:{high}"
    return said


def _shown(name: str, value: float | str) -> str:
    if name == "endpoints":
        return str(value) or _ONE_ENDPOINT
    return f"{value:g}" if isinstance(value, int | float) else str(value)


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
