"""Where the nodes of a job meet, by the command line: which backend, and at which endpoints.

As with torchrun, a static rendezvous is what a command without --rdzv-backend asks for, and a bare
command is a job of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence

from pytest_elastic.backends.names import (
    OWN_HANDLER,
    check_backend,
    handler_endpoint,
    registry_file,
)
from pytest_elastic.cli.option_table import STATIC_PORT
from pytest_elastic.cli.values import Values
from pytest_elastic.config import Endpoint, parse_endpoint, parse_endpoints, parse_nnodes
from pytest_elastic.errors import UsageError
from pytest_elastic.rdzv_conf import RendezvousConf, store_type_of

__all__ = ["check_can_be_found", "file_of_registry", "meeting_point", "node_rank"]

# What stands for an endpoint where nodes meet in a file; without a file, there is no other node.
_PLACES = {True: "localhost", False: "localhost:0"}


def meeting_point(
    values: Values, max_nodes: int, *, on_warning: Callable[[str], None]
) -> tuple[str, tuple[Endpoint, ...], bool | None, str]:
    """Return backend, endpoints, whether this node hosts it (None: find out), and the run id.

    `on_warning` is told of an endpoint that may mean something else. Raises UsageError.
    """

    def warn(text: str) -> None:
        on_warning(values.as_given("rdzv_endpoint", text))

    run_id = values.label("rdzv_id")
    if not run_id:
        raise UsageError(
            f"{values.name('rdzv_id')}= names no job: expected any text that all its nodes give"
        )
    backend = values.text("rdzv_backend")
    file = file_of_registry(values)
    endpoint = values.text("rdzv_endpoint") if file is None else _PLACES[bool(file)]
    master_port = values.optional("master_port")
    if values.is_set("standalone"):
        if max_nodes > 1:
            raise UsageError(
                f"{values.name('standalone')} is a job of one node, and {values.name('nnodes')}="
                f"{values.text('nnodes')} asks for up to {max_nodes}: leave one of them out"
            )
        return "c10d", (Endpoint(host="localhost", port=0),), True, str(uuid.uuid4())
    if backend == "static" and not endpoint and master_port is None and max_nodes == 1:
        # As torchrun: a bare command is a job like --standalone. A name that was given is kept.
        if values.origins["rdzv_id"] == "default":
            run_id = str(uuid.uuid4())
        return "c10d", (Endpoint(host="localhost", port=0),), True, run_id
    if backend == "static":
        # torchrun's static rendezvous: node 0 is where --master-addr points, and no node comes
        # late.
        is_host = node_rank(values, backend) == 0
        if not endpoint:
            return "static", (_master(values),), is_host, run_id
        with values.blamed("rdzv_endpoint"):
            _check_is_one_place(values, endpoint)
            master = parse_endpoint(endpoint, default_port=STATIC_PORT, on_warning=warn)
        return "static", (master,), is_host, run_id
    check_backend(backend, said=values.name("rdzv_backend"))
    if backend not in ("c10d", OWN_HANDLER):
        with values.blamed("rdzv_endpoint"):
            place = handler_endpoint(endpoint, backend, on_warning=warn)
        return backend, (place,), None, run_id
    with values.blamed("rdzv_endpoint"):
        return "c10d", parse_endpoints(endpoint or "localhost", on_warning=warn), None, run_id


def _check_is_one_place(values: Values, endpoint: str) -> None:
    """Refuse for a static rendezvous what only c10d knows: the word is easily forgotten."""
    is_file = store_type_of(values.text("rdzv_conf")) == "file"
    if is_file or "," in endpoint:
        what = "a file (--rdzv-conf store_type=file)" if is_file else "several endpoints"
        raise UsageError(
            f"--rdzv-endpoint={endpoint!r}: nodes meet at {what} with --rdzv-backend=c10d; the "
            "default, static, is one host that never changes",
            hint="Add --rdzv-backend=c10d.",
        )


def _master(values: Values) -> Endpoint:
    """Return where --master-addr and --master-port point; an IPv6 address may have brackets."""
    address = values.text("master_addr")
    host = address[1:-1] if address[:1] + address[-1:] == "[]" else address
    if not re.fullmatch(r"[\w.:%-]+", host):
        raise UsageError(f"{values.name('master_addr')}={address!r} is no name and no address")
    port = STATIC_PORT
    if values.optional("master_port") is not None:
        port = values.number("master_port")
    if port > 65535:
        raise UsageError(f"{values.name('master_port')}={port}: ports end at 65535")
    return Endpoint(host=host, port=port)


def file_of_registry(values: Values) -> str | None:
    """Return the file in which nodes find each other (empty: none is named), if they do so."""
    if values.text("rdzv_backend") not in ("c10d", OWN_HANDLER) or values.is_set("standalone"):
        return None
    with values.blamed("rdzv_conf"):
        if store_type_of(values.text("rdzv_conf")) != "file":
            return None
    with values.blamed("rdzv_endpoint"):
        min_nodes, _ = parse_nnodes(values.text("nnodes"))
        return registry_file(values.text("rdzv_endpoint"), is_needed=min_nodes > 1)


def node_rank(values: Values, backend: str) -> int | None:
    """Return the node's place in the order; 0 in a fixed set of nodes without numbers."""
    if values.optional("node_rank"):
        return values.number("node_rank")
    return 0 if backend == "static" else None


def check_can_be_found(
    backend: str, endpoints: Sequence[Endpoint], conf: RendezvousConf, min_nodes: int
) -> None:
    """Refuse endpoints at which nodes could not meet; raises UsageError."""
    if backend in ("c10d", "static") and endpoints[0].port == 0 and min_nodes > 1:
        raise UsageError(
            f"port 0 of the endpoint {endpoints[0]} means any free one, which no other node could "
            "find",
            hint="Give all nodes the same --rdzv-endpoint=HOST:PORT, as in node0:29400.",
        )
    if len(endpoints) > 1 and conf.is_host:
        raise UsageError(
            "--rdzv-conf is_host=true does not say which of several endpoints this node shall host",
            hint="Leave it out: each endpoint is hosted by the node that owns its address.",
        )
