"""The page of metrics that Prometheus reads."""

import re
import subprocess
import sys
import types

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gossipdp.runtime.observability.metrics import Metrics
from tests.runtime.observability.metric_samples import fill, value

DOCUMENTED = {
    "build_info", "members", "round", "steps_total", "samples_total", "loss", "exchange_duration_seconds",
    "exchanges_total", "sent_bytes_total", "received_bytes_total", "compression_ratio", "consensus_distance",
    "staleness_rounds", "landing_lateness", "lost_steps_total", "chunks_in_doubt_total", "updates_refused_total",
    "handshakes_total", "queue_bytes", "peer_rtt_seconds", "training_stall_seconds_total",
    "checkpoint_last_success_timestamp_seconds", "escalated_blocks_total", "blocks_total", "verdict",
}  # fmt: skip


def test_documented_families_exist_and_are_at_most_sixty(metrics: Metrics) -> None:
    fill(metrics)
    text = generate_latest(metrics.registry).decode()
    families = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert {f"gossipdp_{name}" for name in DOCUMENTED} <= set(families)
    # Three more where there are graphics processors; those of the process are not gossipdp's.
    assert len(families) == len(set(families))
    assert len([name for name in families if name.startswith("gossipdp_")]) <= 60
    assert {name for name in families if not name.startswith(("gossipdp_", "process_"))} == set()
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= samples


def test_exposition_names_follow_the_conventions(metrics: Metrics) -> None:
    fill(metrics)
    for family in metrics.registry.collect():
        assert family.documentation.endswith(".") or family.name.startswith("process_")
        assert (family.type == "counter") == all(sample.name.endswith("_total") for sample in family.samples)


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_page(metrics: Metrics) -> None:
    fill(metrics)
    page = generate_latest(metrics.registry)
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_graphics_processors_are_shown_if_the_host_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(index: int) -> types.SimpleNamespace:
        if index == 1:
            raise RuntimeError("GPU is lost")
        return types.SimpleNamespace(gpu=75)

    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: types.SimpleNamespace(used=10 + index, total=100),
        nvmlDeviceGetUtilizationRates=rates,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    metrics = Metrics()
    fill(metrics)
    assert [value(metrics, "gpu_utilization_ratio", gpu=gpu) for gpu in "012"] == [0.75, None, 0.75]
    assert value(metrics, "gpu_memory_used_bytes", gpu="2") == 12
    assert value(metrics, "gpu_memory_total_bytes", gpu="0") == 100
    families = re.findall(r"^# TYPE gossipdp_", generate_latest(metrics.registry).decode(), re.MULTILINE)
    assert len(families) <= 63


def test_module_imports_no_sockets_of_the_network_and_no_vectors() -> None:
    check = "import sys, gossipdp.runtime.observability.metrics\n"
    check += "print({'zmq', 'numpy', 'torch', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
