"""What importing torch reads from the environment is known, and a worker that differs is fresh."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pytest_elastic.config import DEFAULT_PRELOAD
from pytest_elastic.workers.library_reads import READ_BY_LIBRARIES
from tests.integration.small_agent import AgentProcess
from tests.integration.test_warm_workers import run_worker
from tests.library_reads import trace
from tests.unit.boot.held import ROLE, hold

_TELL = """import json
        from pytest_elastic.boot.host import current
        print(json.dumps([sorted(current().read), current().unlisted]))
        os._exit(0)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_what_libraries_read_is_listed(tmp_path: Path) -> None:
    """Traced anew: a torch that reads more by getenv fails here until the list has it."""
    found = trace(tmp_path)
    assert {"OMP_NUM_THREADS", "TORCH_SHOW_CPP_STACKTRACES"} <= found, "nothing was traced"
    assert sorted(found - READ_BY_LIBRARIES) == []


def test_what_the_default_preload_asks_python_for_is_recorded(tmp_path: Path) -> None:
    """Some hundreds of names, from torch's configuration and from sympy's."""
    done = hold(ROLE.format(body=_TELL), tmp_path, preload=DEFAULT_PRELOAD)
    names, unlisted = json.loads(done.stdout)
    assert {"TORCH_LOGS", "TORCHINDUCTOR_MAX_AUTOTUNE", "INDUCTOR_POST_FUSION_SVG"} <= {*names}
    assert {"AOT_INDUCTOR_DEBUG_COMPILE", "FX_PATCH_GETITEM", "SYMPY_DEBUG"} <= {*names}
    assert unlisted == ""


def test_a_variable_that_a_preloaded_module_reads_is_respected(tmp_path: Path) -> None:
    """As torch._dynamo imports triton, which looks at TRITON_INTERPRET then, and never again."""
    (tmp_path / "compiles.py").write_text("import os\nMODE = os.environ.get('COMPILES_MODE')\n")
    say = "import compiles\nprint(compiles.MODE)\n"
    setting = f"import os\nos.environ['COMPILES_MODE'] = 'slow'\n{say}"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with AgentProcess(preload=["compiles"], environ=environ) as agent:
        for text, added, start, said in (
            (setting, {}, "exec", "slow\n"),
            (say, {"COMPILES_MODE": "fast"}, "exec", "fast\n"),
            (say, {"UNREAD": "1"}, "warm", "None\n"),
        ):
            folder = tmp_path / said.strip() / "work"
            folder.mkdir(parents=True)
            (folder / "script.py").write_text(text)
            (run,) = run_worker(
                agent, ["script.py"], folder, {**environ, **added}, expect_start=start
            )
            assert run == (said, "", 0)
