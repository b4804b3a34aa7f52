"""Daemon and training process of one host: a socket for messages, shared memory for vectors.

The socket is AF_UNIX SOCK_SEQPACKET, mode 0600, and both ends check the other's user. Its end-of-file tells each end at
once that the other has died. Neither end waits in `send`, `receive` or `handle`. Import from this package; its modules
are `server`, `trainer`, `client`, `messages` and `region`. No module here may know torch, zmq or what the vectors mean.
See architecture section 4b.
"""

from __future__ import annotations

from gossipdp.runtime.home_paths import expanded
from gossipdp.runtime.link.client import Link
from gossipdp.runtime.link.data_client import DataLink, DataLost, Group, data_path
from gossipdp.runtime.link.events import (
    Attached,
    Detached,
    LinkEvent,
    ModelWritten,
    MomentsWanted,
    MomentsWritten,
    RankLost,
    Reported,
    SlotApplied,
    Submitted,
    Told,
    TurnedAway,
)
from gossipdp.runtime.link.free_buffer import FreeBuffer
from gossipdp.runtime.link.messages import (
    LINK_VERSION,
    Applied,
    Closing,
    Copied,
    Farewell,
    FromDaemon,
    FromTraining,
    Hello,
    Moments,
    MomentsGiven,
    MomentsTaken,
    Pace,
    Rank,
    Ready,
    Reason,
    Refused,
    RegionReady,
    Renewed,
    Report,
    Session,
    Settled,
    Slot,
    Submit,
    Taken,
    Waiting,
    WantMoments,
    chunk_bits,
)
from gossipdp.runtime.link.region import Region, write_sealed
from gossipdp.runtime.link.server import LinkServer
from gossipdp.runtime.link.wait_lines import WaitLines
from gossipdp.runtime.unix_sockets import default_home, expected, socket_path, supervised

__all__ = [
    "LINK_VERSION",
    "Applied",
    "Attached",
    "Closing",
    "Copied",
    "DataLink",
    "DataLost",
    "Detached",
    "Farewell",
    "FreeBuffer",
    "FromDaemon",
    "FromTraining",
    "Group",
    "Hello",
    "Link",
    "LinkEvent",
    "LinkServer",
    "ModelWritten",
    "Moments",
    "MomentsGiven",
    "MomentsTaken",
    "MomentsWanted",
    "MomentsWritten",
    "Pace",
    "Rank",
    "RankLost",
    "Ready",
    "Reason",
    "Refused",
    "Region",
    "RegionReady",
    "Renewed",
    "Report",
    "Reported",
    "Session",
    "Settled",
    "Slot",
    "SlotApplied",
    "Submit",
    "Submitted",
    "Taken",
    "Told",
    "TurnedAway",
    "WaitLines",
    "Waiting",
    "WantMoments",
    "chunk_bits",
    "data_path",
    "default_home",
    "expanded",
    "expected",
    "socket_path",
    "supervised",
    "write_sealed",
]
