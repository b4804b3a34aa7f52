"""How a wire treats single frames. `test_weather` tests wires as a network."""

import struct

from simulations.processes.namespaces import wires


def segment(flags: int, *, ttl: int = 64, options: bytes = b"", payload: bytes = b"") -> bytes:
    tcp = struct.pack("!HHIIBBHHH", 4710, 5000, 7, 9, (20 + len(options)) << 2, flags, 100, 0, 0) + options + payload
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, ttl, 6, 0) + bytes([10, 77, 0, 1, 10, 77, 0, 2])
    return bytes(wires.VNET_HEADER + 12) + b"\x08\x00" + ip + tcp


def test_as_reset__a_valid_reset_of_the_same_stream__and_what_opens_one_or_is_no_tcp_stays() -> None:
    reset = wires.as_reset(segment(0x18, options=bytes(12), payload=b"a chunk"))[wires.IP :]
    assert len(reset) == 40 and reset[33] == wires.RST | wires.ACK
    assert reset[20:32] == segment(0)[wires.IP + 20 : wires.IP + 32], "ports, sequence and acknowledgement"
    # RFC 1071: the sum over data with its own checksum is all ones.
    for words in (reset[:20], reset[12:20] + struct.pack("!HH", 6, 20) + reset[20:]):
        total = sum(struct.unpack(f"!{len(words) // 2}H", words))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    for frame in (segment(wires.SYN), bytes(wires.VNET_HEADER + 12) + wires.ARP + bytes(28)):
        assert wires.as_reset(frame) == frame
