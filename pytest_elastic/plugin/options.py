"""The plugin's options: command line over marker over ini over default.

Each option has an ini twin of the same name with underscores. Values are plain and JSON-safe, so
that pytest-xdist can carry them to its workers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

__all__ = ["ElasticOptions", "add_options", "is_asked_for", "options_of"]

_KEY = pytest.StashKey["ElasticOptions"]()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    default: str
    metavar: str
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def flag(self) -> str:
        return f"--elastic-{self.name}"

    @property
    def ini(self) -> str:
        return f"elastic_{self.name.replace('-', '_')}"


_OPTIONS = (
    _Option(
        name="nodes",
        default="2",
        metavar="N|MIN:MAX",
        help="how many nodes a job has, where neither marker nor scenario says it",
    ),
    _Option(
        name="nproc",
        default="1",
        metavar="N",
        help="how many workers a node runs, where neither marker nor scenario says it",
    ),
    _Option(
        name="launcher",
        default="pytest-elastic",
        metavar="NAME|COMMAND",
        help="the launcher under test: pytest-elastic, torchrun, torchrun-best, or a command with "
        "$program in it, such as 'accelerate launch ... $program'",
    ),
    _Option(
        name="cluster",
        default="auto",
        metavar="KIND",
        choices=("auto", "namespace", "process"),
        help="namespace: nodes with networks of their own; process: plain processes; auto: the "
        "best that works here",
    ),
    _Option(
        name="seed",
        default="",
        metavar="N",
        help="where all chance of a run comes from (default: a new one, printed)",
    ),
    _Option(
        name="artifacts",
        default=".elastic",
        metavar="DIR",
        help="where runs leave history, logs and timeline",
    ),
    _Option(
        name="keep",
        default="failed",
        metavar="WHICH",
        choices=("failed", "all"),
        help="which runs' artifacts stay when the test is over",
    ),
    _Option(
        name="replay",
        default="",
        metavar="PLAN",
        help="repeat the plan.json of an earlier run instead of planning anew",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticOptions:
    """What was asked for. `seed_text` is how the seed came about, for the header."""

    nodes: str
    nproc: int
    launcher: str
    cluster: str
    seed: int
    artifacts: str
    keep: str
    replay: str


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins."""
    group = parser.getgroup("elastic", "elastic training and fault injection")
    for option in _OPTIONS:
        default = f" (default: {option.default})" if option.default else ""
        group.addoption(
            option.flag,
            dest=option.ini,
            metavar=option.metavar,
            choices=option.choices,
            default=None,
            help=option.help.replace("%", "%%") + default,
        )
        parser.addini(option.ini, help=option.help, default=option.default)


def is_asked_for(config: pytest.Config) -> bool:
    """Tell whether any of the options was given on the command line."""
    return any(config.getoption(option.ini) is not None for option in _OPTIONS)


def options_of(config: pytest.Config) -> ElasticOptions:
    """Return the merged options of a session; raises pytest.UsageError for values that are none."""
    if _KEY not in config.stash:
        config.stash[_KEY] = _merge(config)
    return config.stash[_KEY]


def _merge(config: pytest.Config) -> ElasticOptions:
    values: dict[str, str] = {}
    for option in _OPTIONS:
        given = config.getoption(option.ini)
        values[option.name] = str(config.getini(option.ini) if given is None else given)
        if option.choices and values[option.name] not in option.choices:
            raise pytest.UsageError(
                f"{option.ini} = {values[option.name]}: expected one of {', '.join(option.choices)}"
            )
    return ElasticOptions(
        nodes=_check_nodes(values["nodes"]),
        nproc=_number("nproc", values["nproc"], at_least=1),
        launcher=values["launcher"],
        cluster=values["cluster"],
        seed=_seed(config, values["seed"]),
        artifacts=values["artifacts"],
        keep=values["keep"],
        replay=values["replay"],
    )


def _check_nodes(text: str) -> str:
    from pytest_elastic.config import parse_nnodes
    from pytest_elastic.errors import UsageError

    try:
        parse_nnodes(text)
    except UsageError as error:
        raise pytest.UsageError(str(error).replace("--nnodes", "--elastic-nodes")) from error
    return text


def _number(name: str, text: str, *, at_least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = at_least - 1
    if number < at_least:
        raise pytest.UsageError(
            f"--elastic-{name}={text}: expected a whole number of at least {at_least}"
        )
    return number


def _seed(config: pytest.Config, text: str) -> int:
    if text:
        return _number("seed", text, at_least=0)
    # Under xdist the controller draws, so that all workers report and use one seed.
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None and "elastic_seed" in worker_input:
        return int(worker_input["elastic_seed"])
    return random.SystemRandom().randrange(2**31)
