"""The faults that come with the harness, in the order in which pages show them."""

from __future__ import annotations

from elastic_harness.faults.capture import CapturePackets
from elastic_harness.faults.clock import ClockSkew
from elastic_harness.faults.command import RunCommand
from elastic_harness.faults.degrade import Degrade, ResetConnections
from elastic_harness.faults.disk import DiskError, DiskFull, DiskReadOnly, DiskSlow
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.file_limit import LimitFiles
from elastic_harness.faults.files import CorruptFile
from elastic_harness.faults.foreign_bytes import ForeignBytes
from elastic_harness.faults.gpu import AbortNccl, DeviceAssert, GpuSleep
from elastic_harness.faults.limits import (
    LimitCpu,
    LimitMemory,
    LimitProcesses,
    OutOfMemory,
)
from elastic_harness.faults.membership import JoinNodes, RebootNode, ReplaceNode
from elastic_harness.faults.names import ConfuseNames
from elastic_harness.faults.network import FlapLinks, Partition
from elastic_harness.faults.node import CrashNode, CutPower, KillAgent, LeaveNode, PreemptNode
from elastic_harness.faults.pause import Pause
from elastic_harness.faults.stall import HangWorker, SlowWorker
from elastic_harness.faults.store import FreezeStore, KillStore, SlowStore
from elastic_harness.faults.toxic import AddToxic, DisableProxy, EnableProxy
from elastic_harness.faults.worker import (
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
