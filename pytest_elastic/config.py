"""One frozen value holds every setting of a launch, and where each one came from.

There is one way in: command line over environment (`PET_*`, as torchrun) over default. It is passed
once, in `cli.options`; no other code reads the environment, and each part receives its slice.
The functions here are pure: text in, checked values out, or a `UsageError` that says what was
expected.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import RendezvousConf

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_PRELOAD",
    "Endpoint",
    "LaunchConfig",
    "ProgramConfig",
    "fill_in",
    "name_as_given",
    "parse_endpoint",
    "parse_endpoints",
    "parse_filters",
    "parse_nnodes",
    "parse_signals",
]

# torchrun's default port of a c10d endpoint.
DEFAULT_PORT = 29400

# What a warm interpreter imports. Making the first optimizer imports torch._dynamo (830 modules, as
# long as torch itself), which every worker of every round would otherwise do again.
DEFAULT_PRELOAD = ("torch", "torch._dynamo")

# torchrun's default of --shutdown-timeout.
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
# Of --failure-grace. Who waits in a collective for a peer that has failed never handles a signal.
DEFAULT_FAILURE_GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where nodes meet. Port 0 means any free one, which only a single-node job can use."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """What the workers run.

    `kind` is "script" (a file for the interpreter), "module" (`-m`), "binary" (`--no-python`), or
    "run_path" (`--run-path`: run the file in the interpreter as `runpy.run_path` would).
    """

    kind: str
    target: str
    args: Sequence[str] = ()
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """Everything one node needs to take part in a job.

    `origins` says for each option where its value came from: "command line", "environment PET_…"
    or "default". `node_name` is None unless the user named the node. `error_file` is where the
    agent's parent looks for the reason of a failure. `handler_endpoint` and `handler_conf` are what
    the user said to a backend of torch's or of another package, as text. `registry_file` is
    the file in which nodes find each other, if it is not the endpoint's store. `warnings` are
    sentences for a person: what the user said that has no effect, or may not be what was meant.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    backend: str
    endpoints: Sequence[Endpoint]
    rendezvous: RendezvousConf
    max_restarts: int
    role: str
    program: ProgramConfig
    local_addr: str | None = None
    node_rank: int | None = None
    node_name: str | None = None
    rdzv_token_file: str | None = None
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: Sequence[int] = ()
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()
    log_line_prefix: str | None = None
    logs_specs: str | None = None
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    failure_grace_s: float = DEFAULT_FAILURE_GRACE_S
    signals: Sequence[int] = ()
    worker_start: str = "auto"
    preload: Sequence[str] = DEFAULT_PRELOAD
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    events: str | None = None
    event_log_handler: str = "null"
    error_file: str | None = None
    standalone: bool = False
    handler_endpoint: str = ""
    handler_conf: Mapping[str, str] = field(default_factory=dict)
    registry_file: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def endpoint(self) -> Endpoint:
        """The first endpoint, and as a rule the only one."""
        return self.endpoints[0]

    def said(self, setting: str) -> str:
        """Return what the user wrote to give a setting its value: the option or the variable."""
        return name_as_given(setting, self.origins)


def name_as_given(setting: str, origins: Mapping[str, str]) -> str:
    """Return the option that gives a setting its value, or the variable if that is its origin."""
    origin = origins.get(setting, "")
    variable = origin.removeprefix("environment ")
    return variable if variable != origin else "--" + setting.replace("_", "-")


def parse_nnodes(text: str) -> tuple[int, int]:
    """Return (min, max) nodes from "N" or "MIN:MAX"."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?", text)
    if match is None:
        raise UsageError(
            f"--nnodes={text!r} is not a number of nodes: expected N or MIN:MAX, as in 2 or 1:4"
        )
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if not 1 <= low <= high:
        raise UsageError(
            f"--nnodes={text} asks for at least {low} and at most {high} nodes: "
            f"1 <= MIN <= MAX is expected",
            hint=f"Try --nnodes={high}:{low}." if 1 <= high < low else "Try --nnodes=1:4.",
        )
    return low, high


def parse_endpoint(
    text: str,
    *,
    default_port: int = DEFAULT_PORT,
    on_warning: Callable[[str], None] | None = None,
) -> Endpoint:
    """Return the endpoint that "host", "host:port" or "[v6]:port" stands for.

    An IPv6 address without brackets is accepted where torch accepts it; `on_warning` is told. A
    link-local address has its interface behind a percent sign, as in "[fe80::1%eth0]:29400".
    """
    bracketed = _bracketed(text.strip())
    match = re.fullmatch(
        r"(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%[^\s/\[\],]+)?)\]|(?P<host>[^\s:\[\]/,]+))(?::(?P<port>\d{1,5}))?",
        bracketed or text.strip(),
    )
    if match is None:
        raise UsageError(
            f"--rdzv-endpoint={text!r} is not an endpoint: expected HOST or HOST:PORT, "
            "as in node0:29400, 10.0.0.1:29400 or [::1]:29400"
        )
    port = default_port if match["port"] is None else int(match["port"])
    if port > 65535:
        raise UsageError(f"--rdzv-endpoint={text!r} has port {port}: ports end at 65535")
    endpoint = Endpoint(host=match["v6"] or match["host"], port=port)
    if bracketed and on_warning is not None:
        on_warning(
            f"--rdzv-endpoint={text!r} is read as host {endpoint.host} and port {port}, as "
            f"torchrun reads it; write {bracketed}"
        )
    return endpoint


def _bracketed(text: str) -> str | None:
    """Return "[a::b]:29400" for "a::b:29400", as torch splits at the last colon; None for others.

    What stands before that colon has to be an address: torch also takes "fd00::1" for port 1 of a
    host "fd00:", which is never meant.
    """
    host, _, port = text.rpartition(":")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return None
    return f"[{host}]:{port}"


def parse_endpoints(
    text: str, *, on_warning: Callable[[str], None] | None = None
) -> tuple[Endpoint, ...]:
    """Return the endpoints of "a:29400,b,c:29400": one as a rule, or several, all different.

    They are told apart by spelling alone, once case, a final dot, the ways to write an address and
    `localhost` are allowed for: no name server is asked.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not all(parts):
        raise UsageError(
            f"--rdzv-endpoint={text!r} has an empty place: expected HOST[:PORT],HOST[:PORT],..., "
            "as in node0:29400,node1:29400,node2:29400"
        )
    endpoints = tuple(parse_endpoint(part, on_warning=on_warning) for part in parts)
    for number, endpoint in enumerate(endpoints if len(endpoints) > 1 else ()):
        if endpoint.port == 0:
            raise UsageError(
                f"--rdzv-endpoint={text!r}: port 0 means any free one, which no node could find"
            )
        for other in endpoints[:number]:
            if endpoint.port == other.port and _places(endpoint.host) & _places(other.host):
                raise UsageError(
                    f"--rdzv-endpoint={text!r} names {_as_said_twice(other, endpoint)}: a majority "
                    "of endpoints is counted, so that each has to be another one",
                    hint="Give each endpoint once.",
                )
    return endpoints


def _as_said_twice(one: Endpoint, other: Endpoint) -> str:
    if one == other:
        return f"{one} twice"
    return f"one endpoint twice, as {one} and as {other}"


def _places(host: str) -> frozenset[str]:
    """Return where a host is, as far as its spelling says so; a name server may know more."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return frozenset({"127.0.0.1", "::1", name})
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return frozenset({name})
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return frozenset({str(mapped or address)})


def fill_in(text: str, *, local_rank: int) -> str:
    """Return the text with `${local_rank}` replaced, and `$$` by `$`; as torchrun's macros do.

    Any other `$` stays as it is.
    """
    return string.Template(text).safe_substitute(local_rank=str(local_rank))


def parse_filters(text: str) -> tuple[str, ...]:
    """Return the texts of "apple,orange"; two commas stand for one within a text.

    As with torchrun, an empty text between commas is one that every line contains.
    """
    if not text:
        return ()
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def parse_signals(text: str, known: Mapping[str, int]) -> tuple[int, ...]:
    """Return the signal numbers of a "SIGTERM,SIGINT" text; `known` maps names to numbers.

    Raises UsageError, as all that is parsed here does.
    """
    numbers = []
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        if name in ("SIGKILL", "SIGSTOP") or name not in known:
            raise UsageError(
                f"--signals-to-handle={text}: {name} is not a signal that can be handled; "
                "expected names such as SIGTERM,SIGINT,SIGHUP,SIGQUIT"
            )
        numbers.append(known[name])
    return tuple(numbers)
