# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
# ruff: noqa: SIM105 (contextlib costs more at start-up than all of this file)
"""Load the probe into a worker, and be gone.

The harness puts this folder on the PYTHONPATH of launchers, whose workers inherit it. In a process
that is no worker this only steps aside: it leaves `sys.path` as it would be without us, keeps
PYTHONPATH for the children, and runs the `sitecustomize` that would have been found. The same file
is run by a warm interpreter that becomes a worker.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _watch() -> None:
    """Start the probe where the environment says that this may be a worker."""
    if "ELASTIC_PROBE_SOCKET" in os.environ and "RANK" in os.environ:
        import elastic_probe  # type: ignore[import-not-found,unused-ignore]

        elastic_probe.start(_HERE)


def _run_next() -> None:
    """Run the `sitecustomize` that a fresh interpreter would have found, in our place."""
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None)
        if spec is not None and spec.loader is not None:
            break
    else:
        # `site` passes over exactly this error, and no module of ours stays behind.
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    from importlib.util import module_from_spec

    assert spec is not None, "the loop ended with a specification"
    assert spec.loader is not None, "the loop ended with a loader"
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _watch()
except Exception:  # noqa: BLE001, S110 (what observes must never be what breaks a worker)
    pass
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
_run_next()
