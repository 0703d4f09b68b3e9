"""Every option of `pytest-elastic run`, as a table: torchrun's, in torchrun's order, and our own.

`cli.options` reads command lines and environments by it; `docs/torchrun-parity.md` says of each
how it differs from the installed torchrun's, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_elastic.config import (
    DEFAULT_FAILURE_GRACE_S,
    DEFAULT_PORT,
    DEFAULT_PRELOAD,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
)

__all__ = ["OPTIONS", "STATIC_PORT", "Option"]

STATIC_PORT = 29500  # torchrun's default --master-port


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: what argparse needs to know, and what it means when it is not given."""

    flags: tuple[str, ...]
    help: str
    default: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    is_flag: bool = False
    is_ours: bool = False  # torchrun has no such option

    @property
    def dest(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        return f"PET_{self.dest.upper()}"


OPTIONS = (
    Option(
        flags=("--nnodes",),
        metavar="N|MIN:MAX",
        default="1:1",
        help="how many nodes the job has; with MIN:MAX it goes on with any number in between",
    ),
    Option(
        flags=("--nproc-per-node",),
        metavar="N|auto|cpu|gpu",
        default="1",
        help="how many workers each node runs",
    ),
    Option(
        flags=("--rdzv-backend",),
        metavar="NAME",
        default="static",
        help="how nodes find each other: c10d, static (fixed nodes, --master-addr), etcd-v3, "
        "torch's etcd and etcd-v2, or a name that a package gives torchrun",
    ),
    Option(
        flags=("--rdzv-endpoint",),
        metavar="HOST[:PORT]",
        default="",
        help=f"where nodes meet; the node that owns the address hosts it (port {DEFAULT_PORT}). "
        "Three or more, with commas between them: any minority of them may be lost, at any time",
    ),
    Option(flags=("--rdzv-id",), metavar="ID", default="none", help="the job's name"),
    Option(
        flags=("--rdzv-conf",),
        metavar="KEY=VALUE,...",
        default="",
        help="settings of the rendezvous, such as lease=5,beat_interval=1,last_call_timeout=30",
    ),
    Option(
        flags=("--rdzv-token-file",),
        metavar="FILE",
        is_ours=True,
        help="a secret that all nodes of the job have: what they say to each other is signed",
    ),
    Option(
        flags=("--standalone",),
        is_flag=True,
        help="a job of this node alone: any free port, a name of its own",
    ),
    Option(
        flags=("--max-restarts",),
        metavar="N",
        default="0",
        help="how often the whole job may restart after failures of workers",
    ),
    Option(
        flags=("--monitor-interval",),
        metavar="SECONDS",
        default="0.1",
        help="accepted for torchrun's sake: workers are watched without polling",
    ),
    Option(
        flags=("--start-method",),
        choices=("spawn", "fork", "forkserver"),
        default="spawn",
        help="accepted for torchrun's sake: it never applied to scripts",
    ),
    Option(
        flags=("--event-log-handler",),
        metavar="NAME",
        default="null",
        help="where the events of this launch go: null, or console (JSON lines on stderr)",
    ),
    Option(flags=("--role",), metavar="NAME", default="default", help="the role of this node"),
    Option(flags=("-m", "--module"), is_flag=True, help="run a module, as `python -m`"),
    Option(flags=("--no-python",), is_flag=True, help="run the program itself, not through Python"),
    Option(flags=("--run-path",), is_flag=True, help="run the file as runpy.run_path does"),
    Option(flags=("--log-dir",), metavar="DIR", help="where redirected output goes"),
    Option(
        flags=("-r", "--redirects"),
        metavar="STD",
        default="0",
        help="output to files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as in 0:1,1:3",
    ),
    Option(
        flags=("-t", "--tee"),
        metavar="STD",
        default="0",
        help="output to files and to the console, same values as --redirects",
    ),
    Option(
        flags=("--log-line-prefix-template",),
        metavar="TEMPLATE",
        default="",
        is_ours=True,
        help="what each tee'd line begins with: a text in which ${role_name}, ${local_rank}, "
        "${rank} and ${hostname} are replaced",
    ),
    Option(
        flags=("--local-ranks-filter",),
        metavar="R,R,...",
        default="",
        help="only these local ranks write to the console",
    ),
    Option(
        flags=("--duplicate-stdout-filters",),
        metavar="TEXT,TEXT,...",
        default="",
        help="lines of tee'd stdout that contain one of these go to filtered_stdout.log too; two "
        "commas stand for one in a text",
    ),
    Option(
        flags=("--duplicate-stderr-filters",),
        metavar="TEXT,TEXT,...",
        default="",
        help="the same for stderr and filtered_stderr.log",
    ),
    Option(
        flags=("--node-rank",),
        metavar="N",
        help="this node's place in the order of nodes (gaps are allowed)",
    ),
    Option(
        flags=("--master-addr",),
        metavar="HOST",
        default="127.0.0.1",
        help="with --rdzv-backend=static: the address of node 0",
    ),
    Option(
        flags=("--master-port",),
        metavar="PORT",
        help=f"with --rdzv-backend=static: the port on node 0 ({STATIC_PORT})",
    ),
    Option(
        flags=("--local-addr",),
        metavar="ADDR",
        help="the address of this node that the others shall use",
    ),
    Option(
        flags=("--logs-specs",),
        metavar="NAME",
        help="a class of yours that places output, by its entry point in torchrun.logs_specs",
    ),
    Option(
        flags=("--numa-binding",),
        choices=("node", "socket", "exclusive", "core-complex"),
        help="bind each worker to processors near its GPU: those of the GPU's NUMA node, of its "
        "socket, a share of the node that is the worker's alone, or one group that shares a cache",
    ),
    Option(
        flags=("--signals-to-handle",),
        metavar="SIG,SIG,...",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="signals that make this node leave the job; SIGUSR1 and SIGUSR2, where named, are "
        "passed on to the workers, which go on",
    ),
    Option(
        flags=("--shutdown-timeout",),
        metavar="SECONDS",
        help="how long workers may take to end, where nothing has failed "
        f"({DEFAULT_SHUTDOWN_TIMEOUT_S:g}, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT)",
    ),
    Option(
        flags=("--failure-grace",),
        is_ours=True,
        metavar="SECONDS",
        help="how long the others may take to end after a worker failed or a node was lost: they "
        "may wait for it in a collective, where no signal is handled "
        f"({DEFAULT_FAILURE_GRACE_S:g}, and at most --shutdown-timeout)",
    ),
    Option(
        flags=("--virtual-local-rank",),
        is_flag=True,
        help="each worker sees one GPU only, as device 0 and LOCAL_RANK 0",
    ),
    Option(
        flags=("--use-env",),
        is_flag=True,
        is_ours=True,
        help="accepted for torch.distributed.launch's sake: LOCAL_RANK is always set",
    ),
    Option(
        flags=("--pass-local-rank",),
        is_flag=True,
        is_ours=True,
        help="as torch.distributed.launch: give the script --local-rank=N before its arguments "
        "(--local_rank=N if it names only that)",
    ),
    Option(
        flags=("--node-name",),
        is_ours=True,
        metavar="NAME",
        help="this node's name in the job (default: its host name)",
    ),
    Option(
        flags=("--worker-start",),
        is_ours=True,
        choices=("auto", "exec"),
        default="auto",
        help="auto: workers start from a warm interpreter where that cannot be told from "
        "`python script.py`; exec: always a fresh one",
    ),
    Option(
        flags=("--preload",),
        is_ours=True,
        metavar="MODULE,...",
        default=",".join(DEFAULT_PRELOAD),
        help="what the warm interpreter imports",
    ),
)
