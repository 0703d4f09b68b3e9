"""The plugin's options: command line over ini over default.

What a test says about its job, in the call or in its marker, beats all of them. Each option has an
ini twin of the same name with underscores. Values are plain, so that pytest-xdist can carry them to
its workers.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_elastic.config import DEFAULT_PRELOAD, parse_nnodes
from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.offering import Offering

if TYPE_CHECKING:
    import pluggy
    from elastic_harness.cluster.registry import ClusterRegistry

__all__ = ["ElasticOptions", "add_options", "is_asked_for", "known_clusters", "options_of"]

_KEY = pytest.StashKey["ElasticOptions"]()
_ARTIFACTS = ".elastic"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    default: str
    metavar: str
    help: str
    choices: tuple[str, ...] | None = None
    # Said again in the command that repeats a run, because it changes what is run.
    changes_runs: bool = True
    # A user who sets this means to use us.
    asks_for_us: bool = True
    # Beats the ini file, where it is set.
    variable: str = ""

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
        help="namespace: nodes with networks of their own; process: plain processes; auto: the "
        "best that works here; ssh: on other machines (--elastic-hosts); 'command: ... $machine "
        "... $agent': there by another command than ssh, such as srun; ray: on the machines of a "
        "Ray cluster (--elastic-ray); or one of your own",
    ),
    _Option(
        name="hosts",
        default="",
        metavar="FILE",
        help="the machines that nodes are on, one a line, as ssh takes them",
    ),
    _Option(
        name="call-back",
        default="",
        metavar="HOST[:PORT]",
        help="where machines reach this one, if that is not where ssh comes from",
    ),
    _Option(
        name="ssh",
        default="ssh",
        metavar="COMMAND",
        help="the ssh that is used, with options, such as 'ssh -F FILE'",
    ),
    _Option(
        name="ray",
        default="",
        metavar="ADDRESS",
        help="the Ray cluster on whose machines nodes are: HOST:PORT, or auto for the one of this "
        "machine; without it $RAY_ADDRESS, or a Ray of our own on this machine, for trying",
        variable="RAY_ADDRESS",
    ),
    _Option(
        name="ray-machines",
        default="0",
        metavar="N",
        help="how many machines of the Ray cluster are used; 0: all that have a processor for Ray",
    ),
    _Option(
        name="overlay",
        default="auto",
        metavar="WHICH",
        choices=("auto", "udp", "off"),
        help="auto: nodes on other machines have networks of their own, joined over TCP, where "
        "every machine can make such nodes; udp: the same, joined by datagrams; off: they are "
        "plain processes in the machines' network",
    ),
    _Option(
        name="copy",
        default="",
        metavar="DIR",
        help="a folder, such as that of the job's program, that is copied to the machines which do "
        "not have it, under the same path, and removed there at the end",
    ),
    _Option(
        name="cluster-scope",
        default="session",
        metavar="SCOPE",
        choices=("session", "test"),
        help="session: all tests share a cluster, which is proven clean in between; test: each has "
        "its own, which takes seconds",
        changes_runs=False,
    ),
    _Option(
        name="preload",
        default=",".join(DEFAULT_PRELOAD),
        metavar="MODULE,...",
        help="what a cluster's server imports once, and workers find imported; nothing, where no "
        "job uses torch, spares its import",
        asks_for_us=False,
    ),
    _Option(
        name="seed",
        default="",
        metavar="N",
        help="where all chance of a run comes from (default: a new one, printed)",
    ),
    _Option(
        name="patience",
        default="1",
        metavar="FACTOR",
        help="how many times longer than it says a test waits for anything, on a slow machine or "
        "with a slow launcher; faults come and last as they do with 1",
        variable="PYTEST_ELASTIC_PATIENCE",
    ),
    _Option(
        name="artifacts",
        default=_ARTIFACTS,
        metavar="DIR",
        help="where runs leave history, logs and timeline",
        changes_runs=False,
    ),
    _Option(
        name="keep",
        default="failed",
        metavar="WHICH",
        choices=("failed", "all"),
        help="which runs' artifacts stay when the test is over",
        changes_runs=False,
    ),
    _Option(
        name="keep-runs",
        default="200",
        metavar="N",
        help="when a session ends, remove the oldest runs of earlier sessions, but for the newest "
        "N and what was written in the last hour; 0: keep all",
        changes_runs=False,
    ),
    _Option(
        name="keep-size",
        default="2GB",
        metavar="SIZE",
        help="and keep no more of them than have this size together (100MB, 2GB); 0: no limit",
        changes_runs=False,
    ),
    _Option(
        name="toxiproxy",
        default="embedded",
        metavar="WHICH",
        help="the server for the proxies of jobs: embedded, the URL of a toxiproxy-server on this "
        "machine, or the program of one",
    ),
    _Option(
        name="leak-check",
        default="off",
        metavar="WHICH",
        choices=("off", "on"),
        help="on: every test must leave nothing behind (processes, namespaces, files, threads ...)",
        changes_runs=False,
    ),
    _Option(
        name="shrink",
        default="0",
        metavar="N",
        help="run a scenario whose storm has failed up to N times more, to find fewer of its "
        "faults that fail alike",
        changes_runs=False,
    ),
    _Option(
        name="replay",
        default="",
        metavar="PLAN",
        help="repeat the plan.json of an earlier run, and run nothing else",
        changes_runs=False,
    ),
)
# As `pytest --help` shows them.
_GROUPS = {
    "jobs of tests": ("nodes", "nproc", "launcher", "toxiproxy", "patience"),
    "the cluster": ("cluster", "cluster-scope", "preload", "leak-check"),
    "a cluster on other machines": (
        "hosts",
        "call-back",
        "ssh",
        "ray",
        "ray-machines",
        "overlay",
        "copy",
    ),
    "chance, and runs again": ("seed", "shrink", "replay"),
    "what runs leave": ("artifacts", "keep", "keep-runs", "keep-size"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticOptions:
    """What was asked for.

    `artifacts` and `replay` are absolute paths (`replay` is "" when nothing is to be replayed).
    `given` are the options of the command line that change what is run, for a command that shall do
    the same again.
    """

    nodes: str
    nproc: int
    launcher: str
    cluster: str
    hosts: str
    call_back: str
    ssh: str
    ray: str
    ray_machines: int
    overlay: str
    copy: str
    cluster_scope: str
    preload: tuple[str, ...]
    seed: int
    patience: float
    artifacts: str
    keep: str
    keep_runs: int
    keep_bytes: int
    leak_check: str
    toxiproxy: str
    shrink: int
    replay: str
    given: Mapping[str, str]


def add_options(parser: pytest.Parser, hook: pluggy.HookRelay) -> None:
    """Declare the options and their ini twins; `hook` knows what users register."""
    groups = {
        name: parser.getgroup(f"elastic-{title}", f"elastic: {title}")
        for title, names in _GROUPS.items()
        for name in names
    }
    offering: dict[str, Any] = {"action": Offering, "offered": lambda: known_clusters(hook).names}
    for option in _OPTIONS:
        group = groups[option.name]
        default = f" (default: {option.default})" if option.default else ""
        group.addoption(
            option.flag,
            dest=option.ini,
            metavar=option.metavar,
            choices=option.choices,
            default=None,
            help=option.help.replace("%", "%%") + default,
            **(offering if option.name == "cluster" else {}),
        )
        parser.addini(option.ini, help=option.help, default=option.default)


def is_asked_for(config: pytest.Config) -> bool:
    """Tell whether any of the options was given, on the command line or in an ini file."""
    return any(
        config.getoption(option.ini) is not None or config.getini(option.ini) != option.default
        for option in _OPTIONS
        if option.asks_for_us
    )


def options_of(config: pytest.Config) -> ElasticOptions:
    """Return the merged options of a session; raises pytest.UsageError for values that are none."""
    if _KEY not in config.stash:
        config.stash[_KEY] = _merge(config)
    return config.stash[_KEY]


def _merge(config: pytest.Config) -> ElasticOptions:
    values: dict[str, str] = {}
    given: dict[str, str] = {}
    for option in _OPTIONS:
        on_command_line = config.getoption(option.ini)
        if on_command_line is None:
            ini = str(config.getini(option.ini))
            values[option.name] = os.environ.get(option.variable) or ini
        else:
            values[option.name] = given[option.name] = str(on_command_line)
        if option.choices and values[option.name] not in option.choices:
            raise pytest.UsageError(
                f"{option.ini} = {values[option.name]}: expected one of {', '.join(option.choices)}"
            )
    called_in = str(config.invocation_params.dir)

    def path_of(name: str) -> str:
        """Return a path as pytest's own options take it.

        One on the command line is seen from where pytest was called, one in an ini file from the
        root.
        """
        folder = called_in if name in given else str(config.rootpath)
        return os.path.normpath(os.path.join(folder, values[name]))

    artifacts = path_of("artifacts")
    if values["artifacts"] != _ARTIFACTS:
        _check_artifacts(artifacts)
    return ElasticOptions(
        nodes=_check_nodes(values["nodes"]),
        nproc=_number("nproc", values["nproc"], at_least=1),
        launcher=_check_launcher(config, values["launcher"]),
        cluster=_check_cluster(config, values, given.get("ray", "")),
        hosts=values["hosts"] and path_of("hosts"),
        call_back=values["call-back"],
        ssh=values["ssh"],
        ray=values["ray"],
        ray_machines=_number("ray-machines", values["ray-machines"], at_least=0),
        overlay=values["overlay"],
        copy=values["copy"] and path_of("copy"),
        cluster_scope=values["cluster-scope"],
        preload=tuple(filter(None, values["preload"].split(","))),
        seed=_seed(config, values["seed"]),
        patience=_factor("patience", values["patience"]),
        artifacts=artifacts,
        keep=values["keep"],
        keep_runs=_number("keep-runs", values["keep-runs"], at_least=0),
        keep_bytes=_bytes("keep-size", values["keep-size"]),
        leak_check=values["leak-check"],
        toxiproxy=_check_toxiproxy(values["toxiproxy"]),
        shrink=_number("shrink", values["shrink"], at_least=0),
        replay=values["replay"] and os.path.join(called_in, values["replay"]),
        given={
            option.flag: given[option.name]
            for option in _OPTIONS
            if option.changes_runs and option.name in given
        },
    )


@contextmanager
def _said_of(option: str) -> Iterator[None]:
    """Have pytest say what is wrong with an option."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(f"{option}: {error}") from error


def _check_nodes(text: str) -> str:
    try:
        parse_nnodes(text)
    except UsageError as error:
        raise pytest.UsageError(str(error).replace("--nnodes", "--elastic-nodes")) from error
    return text


def known_clusters(hook: pluggy.HookRelay) -> ClusterRegistry:
    """Return the kinds of cluster that come with the harness, and those of the user's conftests.

    Made anew each time: a conftest.py may have been loaded since. Raises UsageError for a name that
    is taken.
    """
    from elastic_harness.cluster.registry import built_in_clusters

    registry = built_in_clusters()
    hook.pytest_elastic_register_clusters(registry=registry)
    return registry


def _check_cluster(config: pytest.Config, values: Mapping[str, str], ray: str) -> str:
    kind = values["cluster"]
    is_here = kind in ("auto", "namespace", "process")
    if not is_here:  # spares the import where no other was asked for
        with _said_of(f"--elastic-cluster={kind}"):
            known_clusters(config.hook).find(kind)
    for option in ("copy", "hosts"):
        if values[option] and is_here:
            raise pytest.UsageError(
                f"--elastic-{option}={values[option]}: the nodes of --elastic-cluster={kind} are "
                "on this machine; expected --elastic-cluster=ssh or 'command: ...' with it"
            )
    if ray and (is_here or kind == "ssh"):
        raise pytest.UsageError(
            f"--elastic-ray={ray}: nodes are not on the machines of a Ray cluster with "
            f"--elastic-cluster={kind}; expected --elastic-cluster=ray with it"
        )
    return kind


def _check_launcher(config: pytest.Config, text: str) -> str:
    if text == "pytest-elastic":
        return text  # spares the import where no other was asked for
    from elastic_harness.scenario.launchers import LAUNCHERS, launcher_named

    with _said_of("--elastic-launcher"):
        config.hook.pytest_elastic_register_launchers(registry=LAUNCHERS)
        launcher_named(text)
    return text


def _check_toxiproxy(text: str) -> str:
    if text == "embedded":
        return text  # spares the import where no other was asked for
    from elastic_harness.toxiproxy.remote import check_choice

    with _said_of("--elastic-toxiproxy"):
        return check_choice(text)


def _check_artifacts(path: str) -> None:
    """Refuse a folder that cannot be had, by making one where it would begin; nothing stays."""
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".elastic-", dir=there))
    except OSError as error:
        raise pytest.UsageError(
            f"--elastic-artifacts={path}: no folder can be made in {there}: {error.strerror}"
        ) from error


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


def _bytes(name: str, text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise pytest.UsageError(f"--elastic-{name}={text}: expected a size such as 100MB or 2GB")
    power = " KMGT".index(found[2].upper() or " ")
    return int(found[1]) * int(1000**power)


def _factor(name: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 1000:
        raise pytest.UsageError(
            f"--elastic-{name}={text}: expected a number from 1 (as it says) to 1000"
        )
    return factor


def _seed(config: pytest.Config, text: str) -> int:
    if text:
        return _number("seed", text, at_least=0)
    # Under xdist the controller draws, so that all workers report and use one seed.
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None and "elastic_seed" in worker_input:
        return int(worker_input["elastic_seed"])
    return random.SystemRandom().randrange(2**31)
