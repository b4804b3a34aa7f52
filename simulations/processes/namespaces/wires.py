"""Cables with weather: delay, jitter, loss and broken connections, in a process of their own.

    host's namespace                this process                     switch's namespace
    eth0 (TAP) ── frames out ──────────────────────────────────────► port (TAP) ── bridge
    eth0 (TAP) ◄─ frames in ── held `delay`, or lost ── in order ─── port (TAP) ── bridge

Some kernels can queue by rate but not by time (no netem, no fq). Packet queues for user space need a packet filter that
may be missing. A pair of TAP devices needs neither. Weather acts only on the way to the host: there the sender's TCP
has released the frame, so its small queues do not bound what is in flight. No frame overtakes another. ARP passes at
once: a lost ARP answer would be a fault of the laboratory.

A wire without loss passes TCP segments as the kernel bundles them (up to 64 KiB, with their virtio header), at a
hundredth of the cost. A wire with loss gets them one by one. Devices end with the process, and the process ends with
its standard input. `hosts` runs this file as a script, so it imports only the standard library.

A wire can also break the connections that cross it, as a restarted NAT does: for a moment every TCP segment to the host
becomes a reset.

References: Linux Documentation/networking/tuntap.rst; virtio 1.1, 5.1.6; RFC 9293, 3.5.2.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import random
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD, TUNSETCARRIER = 0x400454CA, 0x400454D0, 0x400454E2
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
VNET_HEADER = 10
IP = VNET_HEADER + 14
ETHERTYPE = slice(IP - 2, IP)
ARP, IPV4 = b"\x08\x06", b"\x08\x00"
TCP = 6
SYN, RST, ACK = 0x02, 0x04, 0x10
FRAME = VNET_HEADER + 14 + (64 << 10)
BATCH = 64
"""frames read from one device before the others have their turn"""
HELD = 64 << 20
"""bytes in flight on one wire; more are dropped, as by a router"""
GONE = (errno.EIO, errno.ENETDOWN)
"""errors of a device that is down: an unplugged cable"""


class Wire:
    """One host's cable. `host` and `port` are the descriptors of its ends."""

    def __init__(self, host: int, port: int, seed: int) -> None:
        self.host, self.port = host, port
        self.delay = self.jitter = self.loss = 0.0
        self.lost = self.passed = 0
        self._random = random.Random(seed)
        self._air: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self._last = self._breaks_until = 0.0
        self.set(0.0, 0.0, 0.0)

    def set(self, delay: float, jitter: float, loss: float) -> None:
        """Change the weather of later frames: delay and its standard deviation in seconds, probability of loss."""
        self.delay, self.jitter, self.loss = delay, jitter, loss
        bundles = TUN_F_CSUM | (0 if loss else TUN_F_TSO4 | TUN_F_TSO6)
        for end in (self.host, self.port):
            fcntl.ioctl(end, TUNSETOFFLOAD, bundles)

    def plug(self, there: bool) -> None:
        fcntl.ioctl(self.host, TUNSETCARRIER, struct.pack("i", there))

    def break_connections(self, now: float, seconds: float) -> None:
        """Break the connections on which frames to the host arrive within the next `seconds`."""
        self._breaks_until = now + seconds

    def out(self) -> None:
        """Pass frames from the host to the switch."""
        for frame in _frames(self.host):
            _put(self.port, frame)

    def come(self, now: float) -> None:
        """Take frames from the switch to the host."""
        for frame in _frames(self.port):
            if frame[ETHERTYPE] == ARP:
                _put(self.host, frame)
            elif self._held > HELD or (self.loss and self._random.random() < self.loss):
                self.lost += 1
            else:
                if now < self._breaks_until:
                    frame = as_reset(frame)
                due = now + max(0.0, self._random.gauss(self.delay, self.jitter) if self.jitter else self.delay)
                self._last = max(due, self._last)
                self._air.append((self._last, frame))
                self._held += len(frame)

    def land(self, now: float) -> float:
        """Deliver frames that are due. Return when the next is due."""
        while self._air:
            due, frame = self._air[0]
            if due > now:
                return due
            self._air.popleft()
            self._held -= len(frame)
            self.passed += 1
            _put(self.host, frame)
        return math.inf


def as_reset(frame: bytes) -> bytes:
    """The reset that this segment's sender would have sent instead. Frames that are not TCP, or that open a connection,
    stay as they are."""
    if frame[ETHERTYPE] != IPV4 or frame[IP + 9] != TCP:
        return frame
    tcp = IP + 4 * (frame[IP] & 15)
    if frame[tcp + 13] & SYN:
        return frame
    address = frame[IP + 12 : IP + 20]
    header = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, frame[IP + 8], TCP, 0) + address)
    header[10:12] = _checksum(header)
    reset = bytearray(frame[tcp : tcp + 12] + struct.pack("!BBHHH", 5 << 4, RST | ACK, 0, 0, 0))
    reset[16:18] = _checksum(address + struct.pack("!HH", TCP, len(reset)) + reset)
    return bytes(VNET_HEADER) + frame[VNET_HEADER:IP] + header + reset


def _checksum(words: bytes | bytearray) -> bytes:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)


def _frames(end: int) -> Iterator[bytes]:
    for _ in range(BATCH):
        try:
            yield os.read(end, FRAME)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in GONE:
                raise
            return


def _put(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except BlockingIOError:
        pass
    except OSError as error:
        # A frame that the kernel finds malformed is lost, as on any wire.
        if error.errno not in (*GONE, errno.EINVAL):
            raise


def _tap(namespace: str, device: str) -> int:
    """Make a TAP device in `namespace`. This process stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        descriptors = []
        for path in ("/proc/self/ns/net", f"/var/run/netns/{namespace}"):
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, descriptors[-1])
        here, there = descriptors
        stack.callback(libc.setns, here, CLONE_NEWNET)
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    return end


class Panel:
    """Takes commands as lines of JSON, and answers each with a line."""

    def __init__(self, wires: Sequence[Wire]) -> None:
        self._wires = wires
        self._rest = b""

    def read(self) -> bool:
        """Read commands. Return False at the end of the input."""
        got = os.read(0, 1 << 16)
        *lines, self._rest = (self._rest + got).split(b"\n")
        for line in lines:
            print(json.dumps(self._obey(json.loads(line))), flush=True)
        return bool(got)

    def _obey(self, line: dict[str, Any]) -> dict[str, Any]:
        if (number := line.pop("wire", None)) is None:
            wires = [{"passed": wire.passed, "lost": wire.lost} for wire in self._wires]
            return {"cpu": time.process_time(), "wires": wires}
        wire = self._wires[number]
        if "plug" in line:
            wire.plug(line["plug"])
        elif "broken" in line:
            wire.break_connections(time.monotonic(), line["broken"])
        else:
            wire.set(**line)
        return {}


def main(cables: Sequence[Sequence[str]]) -> None:
    """Run all wires.

    Args:
        cables: the host's namespace and device, and the switch's, of each wire.
    """
    wires = [
        Wire(_tap(namespace, device), _tap(switch, port), number)
        for number, (namespace, device, switch, port) in enumerate(cables)
    ]
    panel = Panel(wires)
    ends = {wire.host: (wire, True) for wire in wires} | {wire.port: (wire, False) for wire in wires}
    poll = select.epoll()
    for descriptor in (0, *ends):
        poll.register(descriptor, select.EPOLLIN)
    print("ready", flush=True)
    due = math.inf
    while True:
        # -1 waits for ever. epoll rounds up to whole milliseconds, so no frame is early.
        for descriptor, _ in poll.poll(-1 if math.isinf(due) else max(0.0, due - time.monotonic())):
            if descriptor == 0:
                if not panel.read():
                    return
                continue
            wire, outward = ends[descriptor]
            if outward:
                wire.out()
            else:
                wire.come(time.monotonic())
        now = time.monotonic()
        due = min(wire.land(now) for wire in wires)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
