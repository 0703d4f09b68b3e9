"""A process that calls a user's `LogsSpecs` class for an agent that does not import torch.

Run as `python -m pytest_elastic.workers.logs.plugin_host SETTINGS`. It answers on its standard
output, one line of JSON for each line that it reads; what the class prints goes to stderr. It ends
with its standard input, so that no agent can leave it behind.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Make the object, say so, and have it place the output of each round."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        specs = _make(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 (the agent says it, in its own words)
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({})
    for line in sys.stdin:
        environs = {int(rank): environ for rank, environ in json.loads(line).items()}
        try:
            answer(_reify(specs, environs))
        except Exception as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})
    answers.close()
    # A thread that the class has started ends with it.
    os._exit(0)


def _make(settings: dict[str, Any]) -> Any:  # noqa: ANN401 (a class of the user's)
    from torch.distributed.elastic.multiprocessing import Std

    (entry_point,) = metadata.entry_points(group="torchrun.logs_specs", name=settings["name"])
    return entry_point.load()(
        log_dir=settings["log_dir"],
        redirects=Std.from_str(settings["redirects"]),
        tee=Std.from_str(settings["tee"]),
        local_ranks_filter=set(settings["local_ranks"]) or None,
    )


def _reify(specs: Any, environs: dict[int, dict[str, str]]) -> dict[str, Any]:  # noqa: ANN401
    """Return what the object says of each worker, as `folders.WorkerLogs` has it.

    It may add to their environments. An empty path is the console, or nothing to show.
    """
    places = specs.reify(environs)
    workers = []
    for rank in sorted(environs):
        read_by_agent = {
            "tee_stdout": places.tee_stdouts.get(rank),
            "tee_stderr": places.tee_stderrs.get(rank),
            "error_file": places.error_files.get(rank),
        }
        paths = {
            "stdout": places.stdouts[rank],
            "stderr": places.stderrs[rank],
            "filtered_stdout": getattr(places, "filtered_stdout", None),
            "filtered_stderr": getattr(places, "filtered_stderr", None),
            **{name: path for name, path in read_by_agent.items() if path != os.devnull},
        }
        said = {name: path or None for name, path in paths.items()}
        workers.append({"local_rank": rank, "environ": environs[rank], **said})
    return {"workers": workers}


if __name__ == "__main__":
    main()
