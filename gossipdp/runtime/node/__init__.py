"""The daemon's node: one peer in the real world, with its loop, training sessions, checkpoints and housekeeping."""

from __future__ import annotations

from gossipdp.runtime.node.config import NodeConfig
from gossipdp.runtime.node.node import Node, Service
from gossipdp.runtime.node.parts import NodeParts
from gossipdp.runtime.node.vector_jobs import MemoryShortError

__all__ = ["MemoryShortError", "Node", "NodeConfig", "NodeParts", "Service"]
