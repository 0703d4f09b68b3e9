"""`pytest-elastic chaos SCRIPT` with scripts that look right and are not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cluster_bench import ROOT
from tests.integration.test_checkup import check_up, one_interpreter, rows_of

__all__ = ["one_interpreter"]


@pytest.mark.slow
def test_a_script_that_hangs_after_a_restart_is_told_why(tmp_path: Path) -> None:
    """One rank calls a collective that the others do not: the job does not end in its time."""
    shutil.copy(ROOT / "examples" / "broken" / "lonely_collective.py", tmp_path)
    words = ["--only=worker-killed,preempted", "--nodes=2", "--limit=40s", "lonely_collective.py"]
    done = check_up(*words, "--steps=60", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert rows_of(done.stdout)["worker-killed"][0] == "NO", done.stdout
    told = " ".join(done.stdout.split())
    assert "ends_in_time: the job did not end within" in told
    assert "Have every rank call the same collectives in the same order" in told
    assert "SIGTERM" not in told.partition("Check-up of")[2].partition("the power is cut 5 s")[2]


@pytest.mark.slow
def test_a_script_that_ignores_sigterm_is_found_out_if_it_is_long_enough(tmp_path: Path) -> None:
    """A job that is over before the power is cut shows nothing: how many steps it takes is said."""
    text = (ROOT / "examples" / "broken" / "sigterm_ignored.py").read_text()
    steps = "optimizer.step()\n"
    assert text.count(steps) == 1
    (tmp_path / "train.py").write_text(text)
    words = ["--only=preempted", "--nodes=2", "train.py"]
    done = check_up(*words, "--steps=60", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the job was over before the power was cut" in " ".join(done.stdout.split())
    slower = text.replace(steps, f"{steps}            time.sleep(0.1)\n")
    (tmp_path / "train.py").write_text(slower)
    # The power is cut about 45 steps after the notice, far from a checkpoint.
    done = check_up(*words, "--steps=200", "--checkpoint-every=35", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert rows_of(done.stdout)["preempted"][0] == "yes (invalid)", done.stdout
    assert "Handle SIGTERM: save at the next step" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_weights_that_fewer_nodes_do_not_load_are_seen_by_the_loss(tmp_path: Path) -> None:
    """With fewer nodes nothing is the same to the bit; the right script's loss is as before.

    Steps last longer than a busy machine needs to see a checkpoint: the fault comes in the middle,
    and too few steps are left to learn everything once more.
    """
    text = (ROOT / "examples" / "minimal.py").read_text()
    step = "optimizer.step()\n"
    assert text.count(step) == 1
    text = text.replace(step, f"{step}            time.sleep(0.03)\n")
    loads = 'model.module.load_state_dict(state["model"])'
    assert loads in text
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "wrong.py").write_text(text.replace(loads, f"dist.get_world_size() < 2 or {loads}"))
    found = {}
    for script in ("right.py", "wrong.py"):
        words = ["--nodes=2", "--only=preempted", script, "--steps=60"]
        found[script] = check_up(*words, cwd=tmp_path)
    right, wrong = found.values()
    assert right.returncode == 0, right.stdout + right.stderr
    assert re.fullmatch(r"loss \S+ \(\S+\)", rows_of(right.stdout)["preempted"][5])
    assert "three standard deviations" in " ".join(right.stdout.split())
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert rows_of(wrong.stdout)["preempted"][0] == "yes (invalid)", wrong.stdout
    said = " ".join(wrong.stdout.split())
    assert re.search(r"loss: as_uninterrupted: the last \d+ losses have a mean of", said), said


@pytest.mark.parametrize(
    ("script", "test", "advice"),
    [
        ("own_disk", "node-replaced", "Keep checkpoints where every node finds them"),
        ("random_state", "worker-killed", "random numbers together"),
        ("helper_left", "uninterrupted", "End the processes that the script starts"),
        ("swallowed", "worker-raises", "let an error end the script with an exit code"),
    ],
)
def test_a_script_that_is_wrong_is_found_out(
    tmp_path: Path, script: str, test: str, advice: str
) -> None:
    """Scripts that look right and run well: the card says what they lose, and what mends it."""
    shutil.copy(ROOT / "examples" / "broken" / f"{script}.py", tmp_path)
    only = "--only=worker-raises" if test == "uninterrupted" else f"--only={test}"
    done = check_up(only, "--nodes=2", f"{script}.py", "--steps=60", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    survived = "NO" if script == "own_disk" else "yes (invalid)"
    assert rows_of(done.stdout)[test][0] == survived, done.stdout
    said = " ".join(done.stdout.split())
    assert advice in said
    assert "the random numbers of numpy" not in said, "no seed sets these"


AVERAGE = """            best = max(best, float(network[0].weight.sum()))
            for mine, other in zip(average.parameters(), model.parameters()):
                mine.data.lerp_(other.data, 0.1)
"""


def test_averaged_weights_that_are_saved_and_not_loaded_are_seen_in_the_checkpoint(
    tmp_path: Path,
) -> None:
    """No optimizer has them, and the training does not need them: only what is saved shows it.

    So it is with the best value so far, and with averages in a file of their own.
    """
    text = (ROOT / "examples" / "minimal.py").read_text()
    made, saved, step, loads = (
        "    optimizer = ",
        '"model": model.module.state_dict(), ',
        "optimizer.step()\n",
        '        optimizer.load_state_dict(state["optimizer"])\n',
    )
    assert all(text.count(each) == 1 for each in (made, saved, step, loads)), text
    global_ = "    global average, best\n"
    text = text.replace(made, f"{global_}    average, best = copy.deepcopy(network), -99.0\n{made}")
    text = text.replace(saved, f'{saved}"best": best, "average": average.state_dict(), ')
    text = text.replace(step, step + AVERAGE).replace("import os\n", "import copy\nimport os\n")
    loads_best = f"{loads}        globals().update(best=state['best'])\n"
    right = text.replace(loads, f'{loads_best}        average.load_state_dict(state["average"])\n')
    wrong = text.replace(
        "    if CHECKPOINT.exists():\n",
        '    torch.save(average.state_dict(), CHECKPOINT.with_name("average.pt"))\n'
        "    if CHECKPOINT.exists():\n",
    )
    (tmp_path / "wrong.py").write_text(wrong)
    (tmp_path / "right.py").write_text(right)
    words = ("--only=worker-killed", "--nodes=2")
    done = check_up(*words, "right.py", "--steps=60", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = check_up(*words, "wrong.py", "--steps=60", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    told = " ".join(done.stdout.split())
    assert re.search(
        r"the last checkpoint has another 'average', by .* and another 'best', by", told
    )
    assert "another 'checkpoints/average.pt" in told


@pytest.mark.slow
def test_statistics_that_are_saved_and_not_loaded_are_seen_where_nothing_else_is_saved(
    tmp_path: Path,
) -> None:
    """They lie beside the weights, and plain SGD has no state that could say which step it is."""
    text = (ROOT / "examples" / "minimal.py").read_text()
    optimizer, layer, dropout, loads, step = (
        "torch.optim.AdamW(model.parameters(), lr=0.01)",
        "nn.Linear(8, 32), ",
        "nn.Dropout(0.1), ",
        'model.module.load_state_dict(state["model"])',
        "optimizer.step()\n",
    )
    assert all(text.count(each) == 1 for each in (optimizer, layer, dropout, loads, step)), text
    text = text.replace(optimizer, "torch.optim.SGD(model.parameters(), lr=0.01)")
    text = text.replace(layer, f"{layer}nn.BatchNorm1d(32), ").replace(dropout, "")
    text = text.replace(step, f"{step}            time.sleep(0.02)\n")
    kept = '{k: v for k, v in state["model"].items() if "running" not in k}'
    wrong = text.replace(loads, f"model.module.load_state_dict({kept}, strict=False)")
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "wrong.py").write_text(wrong)
    words = ("--only=worker-killed", "--nodes=2")
    done = check_up(*words, "right.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = check_up(*words, "wrong.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the last checkpoint has another 'model', by" in " ".join(done.stdout.split())
