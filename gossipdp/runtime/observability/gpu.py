"""Utilisation and memory of the GPUs as metrics."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["GraphicsProcessors"]


class GraphicsProcessors(Collector):
    """Utilisation and memory of the GPUs, if the host has any and the optional package nvidia-ml-py is installed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._count: int = self._nvml.nvmlDeviceGetCount()
        except Exception:  # no package, driver or permission; the error type is known only with the package
            return
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        busy = GaugeMetricFamily(
            "gossipdp_gpu_utilization_ratio", "Share of time a kernel was running.", labels=["gpu"]
        )
        used = GaugeMetricFamily("gossipdp_gpu_memory_used_bytes", "Memory in use.", labels=["gpu"])
        total = GaugeMetricFamily("gossipdp_gpu_memory_total_bytes", "Memory of the device.", labels=["gpu"])
        for index in range(self._count):
            try:
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                busy.add_metric([str(index)], self._nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
                used.add_metric([str(index)], memory.used)
                total.add_metric([str(index)], memory.total)
            except Exception:  # a GPU that fell off the bus must not hide the other figures
                continue
        return busy, used, total
