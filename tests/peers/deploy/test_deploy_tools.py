"""The files of peers/deploy by the tools that they are for."""

import os
import subprocess
from pathlib import Path

import pytest

from simulations.processes.needs import found
from tests.peers.deploy.files import COMPOSE, DEPLOY, DOCKERFILE, JOIN, SBATCH, START, UNIT

EXPOSURE = "30"
"""tenths: the highest exposure level that `systemd-analyze security` may find"""


def run(*argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def passes(*argv: str | Path, **variables: str) -> None:
    done = run(*argv, **variables)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("joins", [False, True])
def test_systemd_finds_nothing_wrong(tmp_path: Path, joins: bool) -> None:
    installed = tmp_path / UNIT.name
    drop_in = tmp_path / "gossipdp@tiny.service.d" / JOIN.name
    drop_in.parent.mkdir()
    for source, target in ((UNIT, installed), (JOIN, drop_in)):
        # It looks for the program, which tests do not install.
        target.write_text(source.read_text().replace("/opt/gossipdp/bin/gossipdp", "/bin/true"))
    if not joins:
        drop_in.unlink()
    done = run("systemd-analyze", "verify", "--man=no", tmp_path / "gossipdp@tiny.service")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_the_sandbox_tight() -> None:
    passes("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", UNIT)


@pytest.mark.parametrize("script", [SBATCH, START], ids=lambda path: path.name)
def test_shells_read_the_scripts(script: Path) -> None:
    passes("bash" if script == SBATCH else "sh", "-n", script)


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("script", [SBATCH, START], ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_scripts(script: Path) -> None:
    passes("shellcheck", script)


@pytest.mark.needs("hadolint")
def test_dockerfile() -> None:
    passes("hadolint", DOCKERFILE)


@pytest.mark.needs("docker compose")
def test_compose_file() -> None:
    passes("docker", "compose", "--file", COMPOSE, "config", "--quiet")


@pytest.mark.needs("kubectl", "kubernetes-validate")
def test_kubernetes(tmp_path: Path) -> None:
    folder, built = DEPLOY / "kubernetes", tmp_path / "built.yaml"
    done = run("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    kinds = ["ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"]
    assert sorted(line[6:] for line in done.stdout.splitlines() if line.startswith("kind: ")) == sorted(kinds)
    built.write_text(done.stdout)
    passes("kubernetes-validate", "--strict", "--no-warn", built)


SKY = """
import sys, sky, yaml
config = yaml.safe_load(open(sys.argv[1]))
seeds = [("GOSSIPDP_NETWORK_SEEDS", "203.0.113.7:4710")] if "secrets" in config else None
secrets = [("GOSSIPDP_INVITE", "an invite")] if "secrets" in config else None
task = sky.Task.from_yaml_config(config, env_overrides=seeds, secrets_overrides=secrets)
assert {str(one.cloud) for one in task.resources} == {"AWS", "GCP", "Azure", "RunPod"}, task.resources
assert all(one.ports == ["4710"] and one.use_spot == bool(secrets) for one in task.resources), task.resources
"""


@pytest.mark.needs("sky")
@pytest.mark.parametrize("name", ["founder", "joiner"])
def test_skypilot(name: str, tmp_path: Path) -> None:
    python = Path(found("sky")).resolve().with_name("python")
    passes(python, "-P", "-c", SKY, DEPLOY / "skypilot" / f"{name}.yaml", HOME=str(tmp_path))
