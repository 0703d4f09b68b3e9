"""A node's network device: a TUN whose packets the switch carries, set up over rtnetlink.

The older ioctl requests would do but for the length of the queue, which they let only the root of
the whole machine change.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from typing_extensions import Self

__all__ = ["MTU", "QUEUE_PACKETS", "configure", "open_tun", "set_up"]

# An Ethernet's. The kernel still hands over up to 64 kB at a time (see `network.packets`), which is
# what makes the switch fast; but TCP counts, loses and repeats in segments of this size.
MTU = 1500
# The device's default of 500 packets overflows, silently, whenever the switch stalls for a moment.
QUEUE_PACKETS = 20000

_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_FLAGS = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
_OFFLOADS = 0x01 | 0x02 | 0x08  # checksums, IPv4 segmentation, also with ECN

_RTM_NEWLINK, _RTM_NEWADDR = 16, 20
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_REPLACE, _NLM_F_CREATE = 0x1, 0x4, 0x100, 0x400
_NLMSG_ERROR = 2
_IFLA_MTU, _IFLA_TXQLEN = 4, 13
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFF_UP = 0x1
_MESSAGE_HEAD = struct.Struct("=IHHII")


def open_tun(name: str, *, offloads: bool = True) -> int:
    """Create a TUN device in this network namespace and return its descriptor, non-blocking.

    It speaks in frames with a virtio header, and with `offloads` leaves checksums and segments to
    the other side.

    The device is persistent: it goes with its namespace, in the kernel's own time. To remove a
    device with its last descriptor takes the kernel 15 to 45 ms in which the closing process waits:
    for the switch, a stall of all nodes.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_FLAGS))
        fcntl.ioctl(fd, _TUNSETPERSIST, 1)
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _OFFLOADS if offloads else 0)
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, f"cannot create a TUN device: {error.strerror}") from error
    return fd


def configure(name: str, address: str, prefix_bits: int, *, mtu: int = MTU) -> None:
    """Give a device its address, the MTU and queue of a cluster link, and bring it up."""
    limits = _attribute(_IFLA_MTU, struct.pack("=I", mtu))
    limits += _attribute(_IFLA_TXQLEN, struct.pack("=I", QUEUE_PACKETS))
    index = socket.if_nametoindex(name)
    with _Netlink(f"cannot set up {name}") as netlink:
        netlink.ask(_RTM_NEWLINK, 0, _link_head(index) + limits)
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBI", socket.AF_INET, prefix_bits, 0, 0, index)
        addresses = _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        netlink.ask(_RTM_NEWADDR, _NLM_F_CREATE | _NLM_F_REPLACE, head + addresses)


def set_up(name: str) -> None:
    """Bring a network device up."""
    with _Netlink(f"cannot bring {name} up") as netlink:
        netlink.ask(_RTM_NEWLINK, 0, _link_head(socket.if_nametoindex(name)))


def _link_head(index: int) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, _IFF_UP, _IFF_UP)


def _attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute whose value, as all of ours, is a multiple of four bytes long."""
    return struct.pack("=HH", 4 + len(value), kind) + value


class _Netlink:
    """A conversation with the kernel; what it refuses is raised with the act in its text."""

    def __init__(self, act: str) -> None:
        self._act = act
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, kind: int, flags: int, body: bytes) -> None:
        """Ask for something and wait for the kernel's consent, which comes at once."""
        flags |= _NLM_F_REQUEST | _NLM_F_ACK
        size = _MESSAGE_HEAD.size + len(body)
        self._socket.send(_MESSAGE_HEAD.pack(size, kind, flags, 1, 0) + body)
        answer = self._socket.recv(4096)
        (answered,) = struct.unpack_from("=H", answer, 4)
        (code,) = struct.unpack_from("=i", answer, _MESSAGE_HEAD.size)
        if answered != _NLMSG_ERROR:
            code = -errno.EPROTO
        if code:
            raise OSError(-code, f"{self._act}: {os.strerror(-code)}")
