"""`pytest-elastic toxiproxy`: a Toxiproxy server, until it is told to end."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from pytest_elastic.agent.signals import SignalWatch
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pytest-elastic toxiproxy",
        description="Serve the HTTP API of Toxiproxy: TCP proxies with latency, lost connections "
        "and other faults. The first line printed says where.",
    )
    parser.add_argument("--host", default="localhost", help="address of the API (%(default)s)")
    parser.add_argument("--port", type=int, default=8474, help="its port, 0 for any (%(default)s)")
    parser.add_argument("--config", metavar="FILE", help="proxies to begin with: a JSON list")
    parser.add_argument("--seed", type=int, default=0, help="where chance begins (%(default)s)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM; return 0."""
    options = build_parser().parse_args(argv)
    loop = Loop()
    # From the beginning, lest a signal ends us in the middle of that.
    signals = SignalWatch(loop, (signal.SIGINT, signal.SIGTERM), lambda _: loop.stop())
    from elastic_harness.toxiproxy.server import Toxiproxy

    server = Toxiproxy(loop, host=options.host, port=options.port, seed=options.seed)
    try:
        server.start()
        if options.config is not None:
            made = server.api.populate(_proxies_in(options.config))
            if made.status != 201:
                raise UsageError(
                    f"cannot make the proxies in {options.config}: {made.body.decode()}"
                )
        print(f"serving the Toxiproxy API at {server.url}", flush=True)
        loop.run()
    finally:
        server.close()
        signals.end()
        loop.close()
    return 0


def _proxies_in(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read the proxies in {path}: {error.strerror}") from error
