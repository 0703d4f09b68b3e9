"""Every part of a scenario with values that it cannot have: one error each, where it stands.

Each row is a piece of a scenario, put into one that is right, and what is said about it: line and
column, then the words or their beginning. `tests/unit/scenario/test_every_key.py` goes through all
keys with garbage; here each value is of the right kind, or nearly so.
"""

from __future__ import annotations

from elastic_harness.scenario.reading.problems import ScenarioError

from tests.unit.scenario.test_loader import GOOD, load

# fmt: off
# A line of `job`.
JOB = [
    ("args: --steps=4", "6:9: a list is expected, found '--steps=4'"),
    ("args: [true]", "6:10: text is expected, found True"),
    ("args: [[a]]", "6:10: text is expected, found ['a']"),
    ("env: [A=1]", "6:8: keys with values are expected, found ['A=1']"),
    ("env: {A: true}", "6:12: text is expected, found True"),
    ("env: {A: null}", "6:12: text is expected, found nothing"),
    ("env: {'A=B': x}", "6:16: no variable can be called 'A=B', or be 'x'"),
    ("env: {'': x}", "6:13: no variable can be called '', or be 'x'"),
    ('env: {A: "a\\0b"}', "6:12: no variable can be called 'A', or be 'a\\x00b'"),
    ("env: {RANK: 3}", "6:9: RANK is what the launcher tells each worker: it cannot be given"),
    ("nproc_per_node: two", "6:19: a whole number is expected, found 'two'"),
    ("nproc_per_node: gpu", "6:19: a whole number is expected, found 'gpu'"),
    ("nproc_per_node: 0", "6:19: at least 1 is expected, found 0"),
    ("nproc_per_node: 100000", "6:19: at most 1024 is expected, found 100000"),
    ("max_restarts: -1", "6:17: at least 0 is expected, found -1"),
    ("max_restarts: true", "6:17: a whole number is expected, found True"),
    ("launcher: ''", "6:13: there is no launcher '': known are pytest-elastic, torchrun, torchrun"),
    ("launcher: mpirun", "6:13: there is no launcher 'mpirun': known are pytest-elastic, torchrun"),
    ("launcher: mpirun $foo $program", "6:13: launcher 'mpirun' cannot fill in its word '$foo' ('"),
    ("launcher: \"mpirun 'x $program\"", "6:13: the launcher \"mpirun 'x $program\" is no command"),
    ("options: [--no-such-option]", "6:13: pytest-elastic has no option '--no-such-option' (did y"),
    ("options: --x", "6:12: a list is expected, found '--x'"),
    ("options: [--nnodes=7]", "6:13: --nnodes is what `nodes: {min: …, max: …}` says"),
    ("options: [--rdzv-endpoint=h:1]", "6:13: --rdzv-endpoint is what `rdzv: {store_host: …}`, or"),
    ("options: [--rdzv_endpoint, h]", "6:30: --rdzv-endpoint is what `rdzv: {store_host: …}`, or"),
    ("options: [--rdzv-conf=lease=5]", "6:13: --rdzv-conf is what `rdzv: {conf: …}` says"),
    ("options: [--rdzv-backend=c10d]", "6:13: --rdzv-backend is what `rdzv: {backend: …}` says"),
    ("options: [--local-addr=h]", "6:13: --local-addr is what the harness, for each node, says"),
    ("options: [-m]", "6:13: --module is what `module` says"),
    ("options: [--tee=9]", "6:13: --tee=9: 0 (none), 1 (stdout), 2 (stderr) or 3 (both) is expect"),
    ("options: [--role=x, -r9]", "6:23: --redirects=9: 0 (none), 1 (stdout), 2 (stderr) or 3 (bot"),
    ("options: [-t, '0:4']", "6:17: --tee=0:4: 0 (none), 1 (stdout), 2 (stderr) or 3 (both) is ex"),
    ("options: [--tee, --role=x]", "6:20: --tee needs a value, and '--role=x' would be another op"),
    ("options: [--tee]", "6:13: --tee needs a value"),
    ("options: [--monitor-interval=fast]", "6:13: --monitor-interval=fast: a number of seconds is"),
    ("options: [--monitor-interval, -1]", "6:33: --monitor-interval=-1: a number of seconds is ex"),
    ("options: [--start-method=thread]", "6:13: --start-method=thread: one of spawn, fork, forkse"),
    ("options: [--event-log-handler=x]", "6:13: --event-log-handler=x: one of null, console, dyna"),
    ("options: ['--local-ranks-filter=0,a']", "6:13: --local-ranks-filter=0,a: local ranks are ex"),
    ("options: [--numa-binding=all]", "6:13: --numa-binding=all: one of node, socket, exclusive,"),
    ("options: [--signals-to-handle=SIGFOO]", "6:13: --signals-to-handle=SIGFOO: SIGFOO is not a "),
    ("options: [--shutdown-timeout=soon]", "6:13: --shutdown-timeout=soon: a number of seconds is"),
    ("launcher: torchrun\n  options: [--shutdown-timeout=1.5]",
     "7:13: --shutdown-timeout=1.5: a whole number of seconds is expected, 0 or more"),
    ("launcher: torchrun\n  options: [--worker-start=exec]",
     "7:13: torchrun has no option '--worker-start' ("),
    ("options: [--worker-start=warm]", "6:13: --worker-start=warm: one of auto, exec is expected"),
    ("options: [--logs-specs=mine]", "6:13: --logs-specs=mine: no package has a class of that nam"),
    ("options: [--master-port=70000]", "6:13: --master-port=70000: a port is expected, 0 to 65535"),
    ("options: [--node-rank=0]", "6:13: --node-rank would be the same on every node: leave it out"),
    ("options: [--node-rank=x]", "6:13: --node-rank=x: a node's number is expected, 0 or more"),
    ("options: [--node-name=a]", "6:13: --node-name would be the same on every node: leave it out"),
    ("options: [--use-env=1]", "6:13: --use-env is a flag, and takes no value"),
    ("options: [--use-env, --pass-local-rank]", "6:24: --use-env and --pass-local-rank contradict"),
    ("options: [other.py]", "6:13: 'other.py' is no option: what the program is given stands in `"),
    ("rdzv: {backend: zookeeper}", "6:19: there is no backend 'zookeeper' (known: c10d, etcd, etc"),
    ("rdzv: {backend: ''}", "6:19: there is no backend '' (known: c10d, etcd, etcd-v2, etcd-v3, p"),
    ("rdzv: {backend: static}", "6:19: a static rendezvous numbers its nodes, and all are given t"),
    ("rdzv: {conf: {leese: 5}}", "6:24: `conf` has no setting 'leese'; known are beat_interval, c"),
    ("rdzv: {conf: {lease: -5}}", "6:24: `conf` lease=-5: expected a number of seconds above 0"),
    ("rdzv: {store_host: n9}", "6:22: no node called 'n9' is there at the start (known: n1, n2)"),
    ("rdzv: {conf: [a]}", "6:16: keys with values are expected, found ['a']"),
    ("rdzv: {conf: {lease: 1, beat_interval: 5}}", "6:16: a lease of 1 s with a beat every 5 s wo"),
    ("rdzv: {conf: {token: 'a,b=c'}}", "6:24: `conf` has no setting 'token'; known are beat_inter"),
    ("observe: {step: '('}", "6:19: '(' is not a regular expression: missing ), unterminated subp"),
    ("observe: step (\\d+)", "6:12: what is 'step (\\\\d+)' to show? (did you mean {step: 'step ("),
    ("options: --monitor-interval=1", "6:12: a list is expected, found '--monitor-interval=1' ("),
    ("args: ['--epochs 1']", "6:9: '--epochs 1' is one word for the program (did you mean [--ep"),
    ("nproc: 2", "6:3: unknown key 'nproc' (did you mean 'nproc_per_node'?)"),
    ("observe: {stap: x}", "6:13: unknown key 'stap' (did you mean 'step'?)"),
]
# A line at the top.
TOP = [
    ("seed: x", "8:7: a whole number is expected, found 'x'"),
    ("seed: 1.5", "8:7: a whole number is expected, found 1.5"),
    ("seed: true", "8:7: a whole number is expected, found True"),
    ("requires: [netwrk]", "8:12: no cluster has a capability 'netwrk' (did you mean 'network'?)"),
    ("requires: network", "8:11: a list is expected, found 'network'"),
    ("timeout: 60s", "8:1: unknown key 'timeout' (did you mean 'limit'?)"),
    ("limit: 0s", "8:8: more than 0 is expected, found '0s'"),
    ("limit: -5s", "8:8: '-5s' is not a duration: write for example 10s, 500ms or 2m"),
    ("limit: 5", "8:8: 5 has no unit (did you mean '5s'?)"),
    ("limit: .nan", "8:8: nan is not a duration: write for example 10s, 500ms or 2m"),
    ("limit: .inf", "8:8: inf is not a duration: write for example 10s, 500ms or 2m"),
    ("limit: 5.5", "8:8: 5.5 has no unit (did you mean '5.5s'?)"),
    ("proxies: [a]", "8:10: keys with values are expected, found ['a']"),
    ("proxies: {'a b': rendezvous}", "8:18: 'a b' is not a name: letters, digits, '-' and '_', be"),
    ("proxies: {db: nowhere}", "8:15: a proxy cannot lead to 'nowhere': 'rendezvous', HOST:PORT o"),
    ("proxies: {db: 'n9:80'}", "8:15: there is no node 'n9' (known: n1, n2)"),
    ("proxies: {db: 'h:99999'}", "8:15: a proxy cannot lead to 'h:99999': 'rendezvous', HOST:PORT"),
    ("proxies: {db: {upstream: 'h:1', listen: 70000}}", "8:41: at most 65535 is expected, found 7"),
    ("proxies: {a: {upstream: 'h:1', listen: 700}, b: {upstream: 'h:1', listen: 700}}",
     "8:75: proxy 'a' listens at port 700 already"),
    ("proxies: {a: rendezvous, b: rendezvous}", "8:29: the rendezvous endpoint is reached through"),
    ("proxies: {a: null}", "8:14: keys with values are expected, found nothing"),
    ("proxies: {a: {upstream: 'h:1', enabled: 3}}", "8:41: true or false is expected, found 3"),
    ("proxies: {a-b: 'h:1', a_b: 'h:2'}", "8:23: jobs would find it as ELASTIC_PROXY_A_B, as 'a-b"),
    ("marks: slow", "8:8: a list is expected, found 'slow'"),
    ("marks: [3]", "8:9: text is expected, found 3"),
    ("marks: ['a b']", "8:9: 'a b' is no marker of pytest: one word is expected"),
    ("matrix: 5", "8:9: a matrix is keys with lists: `matrix: {seed: [1, 2]}`"),
    ("matrix: {}", "8:9: a matrix is keys with lists: `matrix: {seed: [1, 2]}`"),
    ("matrix: {seed: 5}", "8:9: a matrix is keys with lists: `matrix: {seed: [1, 2]}`"),
    ("matrix: {foo.bar: [1]}", "8:10: unknown key 'foo' (known: expect, id, job, limit, marks, no"),
    ("matrix: {timeline.0.at: [5s]}", "8:10: the matrix's 'timeline.0.at' leads nowhere"),
    ("matrix: {send: [huge]}", "8:10: unknown key 'send' (did you mean 'seed'?)"),
    ("matrix: {seed: [1, x]}", "8:20: a whole number is expected, found 'x'"),
    ("matrix: {job.nproc_per_node: [2, 0]}", "8:34: at least 1 is expected, found 0"),
    ("matrix: {seed: [1, 1]}", "2:5: the id 'crash-resume[seed=1]' is taken by the scenario in li"),
    ("matrix: {id: [a]}", "8:10: ids are made of the matrix's values: `id` is none of its axes"),
    ("matrix: null", "8:9: a matrix is keys with lists: `matrix: {seed: [1, 2]}`"),
    ("matrix: {job: [{script: x}]}", "8:25: there is no script at "),
]
# What `nodes` is.
NODES = [
    ("0", "7:8: at least 1 is expected, found 0"),
    ("-1", "7:8: at least 1 is expected, found -1"),
    ("{initial: 2, min: 3, max: 2}", "7:8: 3 to 2 nodes are impossible: min <= max expected"),
    ("999", "7:8: at most 250 is expected, found 999"),
    ("'2-4'", "7:8: keys with values are expected, found '2-4'"),
    ("4:2", "7:8: 4 to 2 nodes are impossible: min <= max expected"),
    ("2.5", "7:8: keys with values are expected, found 2.5"),
    ("true", "7:8: keys with values are expected, found True"),
    ("{min: 4, max: 2}", "7:8: 4 to 2 nodes are impossible: min <= max expected"),
    ("{initial: 250, min: 1, max: 300}", "7:36: at most 250 is expected, found 300"),
]
# A clause of `eventually`.
EVENTUALLY = [
    ("{round: 2}", "14:7: `within` is missing here"),
    ("{round: 2, within: 0s}", "14:26: more than 0 is expected, found 0.0"),
    ("{round: 2, within: 90s}", "14:26: the run is over by then: `limit` is 60s"),
    ("round", "14:7: keys with values are expected, found 'round'"),
    ("{round: 2, world_size: 2, within: 1s}", "14:18: unknown key 'world_size'"),
    ("{world_size: 3, within: 5s}", "14:20: there is no world of 3: the smallest has 4 ranks"),
    ("{round: 0, within: 5s}", "14:15: at least 1 is expected, found 0"),
    ("{world_size: 2, within: 5s}", "14:20: there is no world of 2: the smallest has 4 ranks"),
]
# A clause of `finally`.
FINALLY = [
    ("restarts: -1", "16:7: restarts: -1 is no number of restarts: 0 or more is expected"),
    ("restarts: 5", "16:17: 5 restarts are more than the job may have: `max_restarts` is 0"),
    ("restarts: {at_least: 5}", "16:17: 5 restarts are more than the job may have: `max_restarts`"),
    ("restarts: {}", "16:7: restarts: say how many: a number, at_least or at_most"),
    ("restarts: null", "16:7: restarts: say how many: a number, at_least or at_most"),
    ("restarts: true", "16:7: restarts: say how many: a number, at_least or at_most"),
    ("restarts", "16:7: restarts: say how many: a number, at_least or at_most"),
    ("restarts: off", "16:7: restarts: a whole number is expected, not 'off'"),
    ("no_workers: 3", "16:7: no_workers takes no parameters, not 3"),
    ("no_workers\n    - restarts: 0", "17:7: `restarts` is about workers, and `no_workers` says: "),
    ("job: null", "16:7: job needs outcome"),
    ("job: done", "16:7: job: 'done' is none of 'succeeded', 'failed', 'drained"),
    ("job: succeeded\n    - job: failed", "17:7: `job` stands here and in `finally`"),
    ("exit_codes: {n1: x}", "16:7: exit_codes: a whole number is expected, not"),
    ("exit_codes: {n1: 300}", "16:7: exit_codes: 300 is no exit code: 0 to 255, or -9 for signal "),
    ("world_sizes: 4", "16:7: world_sizes: a list is expected, not 4"),
    ("world_sizes: []", "16:7: world_sizes: one world or more is expected, each of one rank or mo"),
    ("world_sizes: [9]", "16:20: there is no world of 9: the largest has 4 ranks"),
    ("world_sizes: [3]", "16:20: there is no world of 3: the smallest has 4 ranks"),
    ("recovery_time: {at_most: -1s}", "16:7: recovery_time: at_most: a duration like 500"),
    ("recovery_time: {after: nobody, at_most: 5s}", "16:30: no entry of the timeline has the id '"),
    ("resumed_at: {round: 0, step: -3}", "16:7: resumed_at: rounds are counted from 1, and steps "),
    ("steps_lost: {at_most: -1}", "16:7: steps_lost: -1 steps cannot be lost"),
    ("steps_lost: {at_least: 5, at_most: 3}", "16:7: steps_lost has no parameter 'at_least': did "),
    ("parameters: similar", "16:7: parameters: 'similar' is none of 'identical'"),
    ("samples: {each_epoch: twice}", "16:7: samples: each_epoch: 'twice' is none of 'exa"),
    ("progress: {steps: 0}", "16:7: progress: 0 steps are no progress"),
    ("log_contains: '('", "16:7: log_contains: '(' is no regular expression: missing ), untermina"),
    ("log_contains: {pattern: x, node: n9}", "16:40: there is no node 'n9' (known: n1, n2)"),
    ("log_contains: {pattern: x, by: boss}", "16:7: log_contains has no parameter 'by': known: no"),
    ("{}", "16:7: a clause is one name and what is expected: found 0 names"),
    ("5", "16:7: keys with values are expected, found 5"),
    ("{job: succeeded, within: -1s}", "16:32: '-1s' is not a duration: write for example 10s, 500"),
    ("{job: succeeded, within: 3}", "16:32: 3 has no unit (did you mean '3s'?)"),
    ("{job: succeeded, within: 500s}", "16:32: the run is over by then: `limit` is 60s"),
    ("exit_codes: {n9: 0}", "16:24: there is no node 'n9' (known: n1, n2)"),
    ("rank_stability: 3", "16:7: rank_stability takes no parameters, not 3"),
    ("ranks: 3", "16:7: ranks takes no parameters, not 3"),
    ("job_succeeded", "16:7: no checker is called 'job_succeeded': did you mean 'job: succeeded'?"),
    ("steps_lost: {max: 5}", "16:7: steps_lost has no parameter 'max': did you mean 'at_most'?"),
    ("split_brain", "16:7: `split_brain` is seen or not seen, and nothing that holds: it stands i"),
    ("rank_reassigned", "16:7: `rank_reassigned` is seen or not seen, and nothing that holds: it"),
    ("kill: rank 1", "16:7: `kill` is done, and nothing that holds: it stands in the timeline"),
    ("progress: {steps: 3, after: storm-2}", "16:35: no entry of the timeline has the id 'storm-2"),
    ("recovery_time: {after: storm, at_most: 5s}", "16:30: no entry of the timeline has the id 's"),
    ("progress: {steps: 3, after: entry-7}", "16:35: no entry of the timeline has the id 'entry-7"),
    ("ranks: off", "16:7: ranks takes no parameters, not 'off'"),
]
# A clause of another bucket.
BUCKETS = [
    ("evntually | round: 1", "13:3: unknown key 'evntually' (did you mean 'eventually'?)"),
    ("never | 5", "14:7: keys with values are expected, found 5"),
    ("never | split_brian", "14:7: no checker is called 'split_brian': did you mean 'split_brain'"),
    ("never | ranks", "14:7: `ranks` is nothing that is seen or not: in `never` stand events, log"),
    ("never | {job: succeeded}", "14:7: `job` is nothing that is seen or not: in `never` stand ev"),
    ("never | {job: succeeded, restarts: 1}", "14:7: a clause is one name and what is expected: f"),
    ("never | {log: '('}", "14:13: '(' is not a regular expression: missing ), unterminated subpa"),
    ("never | {event: nope}", "14:15: there is no event 'nope' (known: agent_exited, agent_moved"),
    ("never | {round: 2}", "14:8: no checker is called 'round': known: agreement, budget, consist"),
    ("never | {world_size: 2}", "14:8: no checker is called 'world_size': did you mean 'world_siz"),
    ("never | {split_brain: off}", "14:8: split_brain takes no parameters, not 'off'"),
    ("never | {split_brain: false}", "14:8: split_brain takes no parameters, not False"),
    ("never | {split_brain: 3}", "14:8: split_brain takes no parameters, not 3"),
    ("never | {split_brain: true, within: 5s}", "14:27: a clause of `never` has no time of its ow"),
    ("never | agreement", "14:7: `agreement` is nothing that is seen or not: in `never` stand eve"),
    ("sometimes | {restarts: 1}", "14:7: `restarts` is nothing that is seen or not: in `sometimes"),
    ("sometimes | rank_resigned", "14:7: no checker is called 'rank_resigned': did you mean 'rank"),
    ("sometimes | {progress: {steps: 3}}", "14:7: `progress` is nothing that is seen or not: in `"),
    ("sometimes | {rank_reassigned: off}", "14:8: rank_reassigned takes no parameters, not 'off'"),
    ("always | {one_wrld: off}", "14:8: no checker is called 'one_wrld': did you mean 'one_world'"),
    ("always | {restarts: off}", "14:8: restarts: say how many: a number, at_least or at_most"),
    ("always | split_brain", "14:7: `split_brain` is seen or not seen, and nothing that holds: it"),
    ("always | null", "14:7: keys with values are expected, found nothing"),
]
# What `storm` is.
STORMS = [
    ("5", "8:8: keys with values are expected, found 5"),
    ("{max: 0}", "8:14: at least 1 is expected, found 0"),
    ("{over: 0s}", "8:15: more than 0 is expected, found 0.0"),
    ("{steps: 1}", "8:16: at least 2 is expected, found 1"),
    ("{faults: []}", "8:17: 1 or more are expected here, found []"),
    ("{faults: worker}", "8:17: a list is expected, found 'worker'"),
    ("{faults: [worker, worker]}", "8:26: 'worker' stands here twice"),
    ("{exclude: [n9]}", "8:19: no node called 'n9' is there at the start (known: n1, n2, n3, stor"),
    ("{faults: [node], exclude: [n1, n2, n3]}", "8:18: there is nothing to draw 'node' for: of 3 "),
    ("{sed: 3}", "8:9: unknown key 'sed' (did you mean 'seed'?)"),
    ("{over: 70s}", "8:15: the run is over by then: `limit` is 60s"),
    ("{seed: x}", "8:15: a whole number is expected, found 'x'"),
    ("{over: 5s, steps: 10}", "8:26: `over` and `steps` both say when faults come: keep one of th"),
]
# fmt: on

JOB_LINE, NODES_LINE = "  nproc_per_node: 2\n", "nodes: 2\n"
PLACES = [
    *((JOB_LINE, f"  {text}\n", said) for text, said in JOB),
    *((NODES_LINE, f"nodes: 2\n{text}\n", said) for text, said in TOP),
    *((NODES_LINE, f"nodes: {text}\n", said) for text, said in NODES),
    *(("- {round: 2, within: 10s, after: crash}", f"- {text}", said) for text, said in EVENTUALLY),
    *(("- job: succeeded", f"- {text}", said) for text, said in FINALLY),
    *(
        ("expect:\n", "expect:\n  {}:\n    - {}\n".format(*text.split(" | ")), said)
        for text, said in BUCKETS
    ),
]


def said_wrongly(good: str, places: list[tuple[str, str, str]]) -> dict[str, str]:
    """Put each piece into a scenario; return what is said where something else was expected."""
    found: dict[str, str] = {}
    for old, new, said in places:
        assert old in good
        try:
            load(good.replace(old, new))
        except ScenarioError as error:
            text = str(error)
            if len(error.problems) != 1 or not text.startswith(f"some/file.elastic.yaml:{said}"):
                found[new] = text
        else:
            found[new] = "nothing"
    return found


def test_a_wrong_value_is_one_clear_error() -> None:
    """Where it stands, and what was expected."""
    assert said_wrongly(GOOD, PLACES) == {}


def test_a_wrong_storm_is_one_clear_error() -> None:
    """In a job that could weather one."""
    nodes = "nodes: {initial: 3, min: 1, max: 3}\n"
    good = GOOD.replace(JOB_LINE, "  max_restarts: 9\n")
    good = good.replace(NODES_LINE, f"{nodes}storm: {{max: 2}}\n")
    assert load(good)
    assert said_wrongly(good, [("{max: 2}", text, said) for text, said in STORMS]) == {}
