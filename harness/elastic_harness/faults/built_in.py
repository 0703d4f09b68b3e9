"""The faults that come with the harness, in the order in which pages show them."""

from __future__ import annotations

from elastic_harness.faults.command import RunCommand
from elastic_harness.faults.disks.disk import DiskError, DiskFull, DiskReadOnly, DiskSlow
from elastic_harness.faults.disks.files import CorruptFile
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.links.capture import CapturePackets
from elastic_harness.faults.links.degrade import Degrade, ResetConnections
from elastic_harness.faults.links.foreign_bytes import ForeignBytes
from elastic_harness.faults.links.names import ConfuseNames
from elastic_harness.faults.links.network import FlapLinks, Partition
from elastic_harness.faults.links.store import FreezeStore, KillStore, SlowStore
from elastic_harness.faults.links.toxic import AddToxic, DisableProxy, EnableProxy
from elastic_harness.faults.nodes.clock import ClockSkew
from elastic_harness.faults.nodes.limits import (
    LimitCpu,
    LimitMemory,
    LimitProcesses,
    OutOfMemory,
)
from elastic_harness.faults.nodes.membership import JoinNodes, RebootNode, ReplaceNode
from elastic_harness.faults.nodes.node import CrashNode, CutPower, KillAgent, LeaveNode, PreemptNode
from elastic_harness.faults.workers.file_limit import LimitFiles
from elastic_harness.faults.workers.gpu import AbortNccl, DeviceAssert, GpuSleep
from elastic_harness.faults.workers.pause import Pause
from elastic_harness.faults.workers.stall import HangWorker, SlowWorker
from elastic_harness.faults.workers.worker import (
    AbortWorker,
    ExitWorker,
    KillWorker,
    RaiseInWorker,
    SegfaultWorker,
)

__all__ = ["BUILT_IN"]

BUILT_IN: tuple[type[Fault], ...] = (
    KillWorker,
    ExitWorker,
    RaiseInWorker,
    SegfaultWorker,
    AbortWorker,
    HangWorker,
    SlowWorker,
    KillAgent,
    CrashNode,
    CutPower,
    PreemptNode,
    LeaveNode,
    JoinNodes,
    ReplaceNode,
    RebootNode,
    Pause,
    Partition,
    FlapLinks,
    Degrade,
    ResetConnections,
    ConfuseNames,
    AddToxic,
    DisableProxy,
    EnableProxy,
    CapturePackets,
    RunCommand,
    OutOfMemory,
    LimitCpu,
    LimitMemory,
    LimitProcesses,
    LimitFiles,
    DiskFull,
    DiskReadOnly,
    DiskError,
    DiskSlow,
    CorruptFile,
    ClockSkew,
    KillStore,
    FreezeStore,
    SlowStore,
    ForeignBytes,
    DeviceAssert,
    GpuSleep,
    AbortNccl,
)
