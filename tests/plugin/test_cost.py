"""What the plugin costs a pytest run that does not use it: next to nothing."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.plugin.place import Place

# Of what the import of pytest itself takes, it is a tenth; with another tenth, somebody has
# imported what a run without us does not need.
MOST = 0.2

# What may not be there before it is used, and what nobody else brings.
HEAVY = ("elastic_harness", "pydantic", "yaml", "torch", "numpy", "jinja2", "cloudpickle")


def test_a_run_without_elastic_tests_loads_none_of_what_costs(place: Place) -> None:
    """Not with options given, not for the help: the harness comes with the first elastic test."""
    place.add("test_other.py", "def test_other(): pass")
    place.add(
        "conftest.py",
        f"""
        import sys
        def pytest_unconfigure(config):
            heavy = {HEAVY!r}
            print("loaded:", sorted(m for m in sys.modules if m.partition(".")[0] in heavy))
            print("plugin:", config.pluginmanager.hasplugin("elastic"))
        """,
    )
    for arguments in ([], ["--help"], ["--fixtures"]):
        called = place.pytest("-p", "no:html", *arguments)  # which loads jinja2 itself
        assert "loaded: []" in called.out
        assert "plugin: True" in called.out
    place.add("test_seed.py", "def test_seed(elastic_seed): pass")
    assert "'elastic_harness'" in place.pytest().out, "this way of looking does see it"


def test_importing_the_plugin_takes_less_than_it_may() -> None:
    """After pytest, in one interpreter; the least share is of the one that was left alone."""
    shares = []
    for _ in range(7):
        done = subprocess.run(
            [
                sys.executable,
                "-X",
                "importtime",
                "-c",
                "import pytest; import pytest_elastic.plugin",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        took = {
            name: int(microseconds)
            for microseconds, name in re.findall(r"\| +(\d+) \| (\S+)$", done.stderr, re.MULTILINE)
        }
        shares.append(took["pytest_elastic.plugin"] / took["pytest"])
    assert min(shares) < MOST, shares
