"""The rules of the house, as tables: which rooms may import which, what is pure, what may be long.

This file is meant to be read. `checks.py` reads the syntax trees and compares; the tests beside it
run every check on the real tree, and on a tree with a planted fault to see that the check bites.
`docs/architecture.md` quotes the tables (`python -m tests.house.tables` prints them).

Lists of exceptions carry a reason each. They may shrink and not grow.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DEFERRED_CIRCLES",
    "EFFECTS",
    "EFFECT_CALLS",
    "HEAVY_FOR_THE_COMMAND",
    "HEAVY_FOR_THE_PLUGIN",
    "IMPORTERS",
    "OUTSIDE_PYTHON_PATH",
    "PURE",
    "PURE_EXCEPT",
    "ROOMS",
    "Importer",
    "Pure",
    "Room",
]


# Arrows


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Some modules (each with all below it) and which rooms and modules they may import."""

    name: str
    holds: tuple[str, ...]
    may_import: tuple[str, ...]
    because: str
    only_pure_outside_the_ground: bool = False


# A module belongs to the room that names it most precisely. Every room may import itself.
ROOMS = (
    Room(
        name="ground",
        holds=(
            "pytest_elastic",
            "pytest_elastic.errors",
            "pytest_elastic.clock",
            "pytest_elastic.config",
            "pytest_elastic.rdzv_conf",
            "pytest_elastic.port_range",
            "pytest_elastic.name_servers",
            "pytest_elastic.environ",
            "pytest_elastic.wire",
            "pytest_elastic.printed",
            "pytest_elastic.exit_codes",
            "pytest_elastic.own_proc",
            "pytest_elastic.loop",
            "pytest_elastic.file_thread",
            "pytest_elastic.file_work",
            "pytest_elastic.frames",
            "pytest_elastic.channel",
            "pytest_elastic.agent_channel",
            "pytest_elastic.credentials",
            "pytest_elastic.events",
            "pytest_elastic.boot",
            "pytest_elastic.unread",
            "pytest_elastic.whole_file",
        ),
        may_import=(),
        because="everything stands on it",
    ),
    Room(
        name="rendezvous",
        holds=("pytest_elastic.rendezvous",),
        may_import=("ground",),
        because="it knows nodes, never processes",
    ),
    Room(
        name="workers",
        holds=("pytest_elastic.workers",),
        may_import=("ground",),
        because="it knows processes, never nodes",
    ),
    Room(
        name="agent",
        holds=("pytest_elastic.agent",),
        may_import=(
            "ground",
            "pytest_elastic.rendezvous.model",
            "pytest_elastic.rendezvous.ports",
            "workers",
        ),
        because="any rendezvous that keeps its ports will do",
    ),
    Room(
        name="backends",
        holds=("pytest_elastic.backends",),
        may_import=(
            "ground",
            "rendezvous",
            "pytest_elastic.workers.store.name_lookup",
            "pytest_elastic.workers.store.own_address",
            "pytest_elastic.workers.store.service",
        ),
        because="other rendezvous for our agents, and ours for other agents",
    ),
    Room(
        name="launch",
        holds=("pytest_elastic.launch",),
        may_import=("ground", "rendezvous", "workers", "agent", "backends"),
        because="it wires one node, and is the only place that does",
    ),
    Room(
        name="harness",
        holds=("elastic_harness",),
        may_import=(
            "ground",
            "pytest_elastic.rendezvous.model",
            "pytest_elastic.rendezvous.settings",
        ),
        because="it tests any launcher, and is no part of ours",
        only_pure_outside_the_ground=True,
    ),
    Room(
        name="simulation",
        holds=("elastic_simulation",),
        may_import=(
            "ground",
            "rendezvous",
            "workers",
            "agent",
            "harness",
        ),
        because="it plays the launcher's machines; a checkout has it, a wheel does not",
    ),
    Room(
        name="command line",
        holds=("pytest_elastic.cli", "pytest_elastic.__main__"),
        may_import=(
            "ground",
            "rendezvous",
            "workers",
            "agent",
            "backends",
            "launch",
            "harness",
            "pytest_elastic.plugin.options",
        ),
        because="a face; what a project registers by hooks of pytest is known to pytest alone",
    ),
    Room(
        name="launcher",
        holds=("pytest_elastic.launcher", "pytest_elastic.as_torchrun"),
        may_import=("ground", "rendezvous", "workers", "agent", "launch", "command line"),
        because="the face for Python programs: it starts the command's own parts",
    ),
    Room(
        name="plugin",
        holds=("pytest_elastic.plugin",),
        may_import=("ground", "harness"),
        because="the other face: it runs launchers, it is not one",
    ),
)

# Circles that exist only because of imports inside functions or for types. None is better.
DEFERRED_CIRCLES: tuple[frozenset[str], ...] = ()


# Purity


@dataclass(frozen=True, slots=True, kw_only=True)
class Pure:
    """A module, or a package with all below it but its drivers: values in, values out."""

    holds: str
    drivers: tuple[str, ...] = ()


PURE = (
    Pure(holds="pytest_elastic.errors"),
    Pure(holds="pytest_elastic.config"),
    Pure(holds="pytest_elastic.rdzv_conf"),
    Pure(holds="pytest_elastic.port_range"),
    Pure(holds="pytest_elastic.wire"),
    Pure(holds="pytest_elastic.printed"),
    Pure(holds="pytest_elastic.events", drivers=("sinks",)),
    Pure(holds="pytest_elastic.rendezvous", drivers=("driver", "registries")),
    Pure(holds="pytest_elastic.backends.bridge"),
    Pure(holds="pytest_elastic.backends.bridge_vocabulary"),
    Pure(holds="pytest_elastic.workers.spec"),
    Pure(holds="pytest_elastic.exit_codes"),
    Pure(holds="pytest_elastic.workers.messages"),
    Pure(
        holds="pytest_elastic.agent",
        drivers=("agent", "program", "signals", "store_calls"),
    ),
    Pure(holds="elastic_harness.future"),
    Pure(holds="elastic_harness.finding"),
    Pure(holds="elastic_harness.registry"),
    Pure(holds="elastic_harness.cluster.cluster"),
    Pure(holds="elastic_harness.cluster.facets"),
    Pure(holds="elastic_harness.cluster.process"),
    Pure(holds="elastic_harness.cluster.limits.cgroup_layout"),
    Pure(holds="elastic_harness.cluster.disks.policy"),
    Pure(
        holds="elastic_harness.network",
        drivers=("alarm", "capture", "lane", "switch", "trunk"),
    ),
    Pure(
        holds="elastic_harness.toxiproxy",
        drivers=(
            "address",
            "api",
            "client",
            "connection",
            "proxy",
            "remote",
            "server",
        ),
    ),
    # The most precise first.
    Pure(holds="elastic_harness.scenario.reading", drivers=("loader",)),
    Pure(
        holds="elastic_harness.scenario.checks",
        drivers=("launcher_options", "torchrun_options"),
    ),
    Pure(
        holds="elastic_harness.scenario.stage",
        drivers=(
            "clocks",
            "held_writers",
            "log_watch",
            "proxies",
            "stage",
            "working_copy",
        ),
    ),
    Pure(holds="elastic_harness.scenario", drivers=("engine_run", "runner", "setup")),
    Pure(holds="elastic_harness.checkup", drivers=("checkpoint_reader", "runs")),
    Pure(holds="elastic_harness.faker_provider"),
    Pure(holds="elastic_harness.faults.evidence"),
    Pure(holds="elastic_harness.faults.recipe"),
    Pure(holds="elastic_harness.faults.recipes"),
    Pure(holds="elastic_harness.history"),
    Pure(holds="elastic_simulation.random_faults", drivers=("ledger",)),
    Pure(holds="elastic_simulation.scenarios", drivers=("cluster", "run")),
    Pure(holds="elastic_simulation", drivers=("__main__",)),
    Pure(holds="elastic_harness.report", drivers=("run_directory",)),
)

# What a pure file does not import, and the names of it that are harmless all the same.
EFFECTS: dict[str, tuple[str, ...]] = {
    "asyncio": (),
    "ctypes": (),
    "fcntl": (),
    "logging": (),
    "mmap": (),
    "multiprocessing": (),
    "os": ("path", "PathLike", "fspath"),
    "pathlib": ("PurePath", "PurePosixPath"),
    "random": ("Random",),  # a stream that was handed in, or made from a seed
    "secrets": (),
    "select": (),
    "selectors": (),
    "shutil": (),
    "signal": ("Signals", "SIG*"),  # their names and numbers, not the sending
    "socket": (),
    "subprocess": (),
    "tempfile": (),
    "threading": (),
    "time": (),
    "torch": (),
    "uuid": (),
    "yaml": (),
}

# Builtins that read or write.
EFFECT_CALLS = ("breakpoint", "input", "open", "print")

# (module, what it imports or calls): why.
PURE_EXCEPT: dict[tuple[str, str], str] = {
    ("elastic_harness.cluster.facets", "socket"): (
        "the interface hands out connected sockets and names their type; it makes none"
    ),
    ("elastic_simulation.granted", "pytest_elastic"): (
        "the registry drives a node; here it is driven itself, by a loop that is played"
    ),
    ("elastic_harness.scenario.reading.yaml_tree", "yaml"): (
        "the one place that knows YAML: text in, values with their positions out"
    ),
    ("elastic_harness.history.history", "open()"): (
        "a history is written down as it happens, and read back; no checker does either"
    ),
}


# Processes

# What signals a process, or looks at one, beside reading below /proc.
PROCESS_CALLS = (
    "os.kill",
    "os.killpg",
    "os.pidfd_open",
    "os.waitpid",
    "resource.prlimit",
    "signal.pidfd_send_signal",
)
# Modules that do so for who imports them.
PROCESS_MODULES = (
    "elastic_harness.cluster.local_processes",
    "elastic_harness.cluster.process_table",
)
# The packages that do it for nodes, of this machine or others, and those that run on nodes.
PROCESSES_IN = ("elastic_harness.cluster", "elastic_harness.observe.probe")

# Modules of the harness that do it themselves: why.
PROCESSES_EXCEPT: dict[str, str] = {
    "elastic_harness.leaks": "checks for leaks: they ask the kernel, not the cluster",
    "elastic_harness.observe.stacks": "a file in memory that a probe of this machine has offered",
    "elastic_harness.ranks.rank_faults": "ranks are forked from the test's process: no cluster",
    "elastic_harness.ranks.rank_server": "ranks are forked from the test's process: no cluster",
}


# Expensive imports


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Which modules may import something expensive; `at_top` if not only inside functions."""

    package: str
    modules: tuple[str, ...]
    at_top: tuple[str, ...] = ()


IMPORTERS = (
    Importer(
        package="torch",
        modules=(
            "pytest_elastic.backends.handler_host",
            "pytest_elastic.backends.torchrun_handler",
            "pytest_elastic.launcher.as_torchrun",
            "pytest_elastic.workers.logs.plugin_host",
            "pytest_elastic.workers.store.torch_store",
            "elastic_harness.checkup.checkpoint_reader",
            "elastic_harness.observe.logs_specs",
            "elastic_harness.observe.probe.elastic_probe_torch",
            "elastic_harness.ranks.rank_process",
            "elastic_harness.scenario.checks.torchrun_options",
        ),
    ),
    Importer(
        package="yaml",
        modules=("elastic_harness.scenario.reading.yaml_tree",),
        at_top=("elastic_harness.scenario.reading.yaml_tree",),
    ),
    Importer(
        package="ray",
        modules=("elastic_harness.cluster.machines.ray_driver",),
        at_top=("elastic_harness.cluster.machines.ray_driver",),
    ),
)

# Importing the plugin happens in every pytest run of everyone who has us installed.
HEAVY_FOR_THE_PLUGIN = ("torch", "numpy", "pydantic", "jinja2", "faker", "elastic_harness.cluster")
# And the command line answers `--help` at once.
HEAVY_FOR_THE_COMMAND = ("torch", "numpy", "pydantic", "jinja2", "faker", "elastic_harness")

# Loaded by name from a folder on PYTHONPATH, inside processes that are not ours: no package above
# them, no exports, and nothing imported that the user's program did not ask for.
OUTSIDE_PYTHON_PATH = ("pytest_elastic.boot.site", "elastic_harness.observe.probe")
