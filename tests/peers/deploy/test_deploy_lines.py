"""Every line of `gossipdp` in peers/deploy is one that the command accepts, and all files agree. No tool is needed."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.peers.deploy.files import (
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    JOIN,
    PATIENCE,
    ROOT,
    SBATCH,
    START,
    UNIT,
    document,
    documents,
    exec_start,
    parsed,
    seconds,
    unit,
)
from tests.peers.deploy.shell import Shell

TRAIN = ["python", "-m", "peers.jobs.recipes.train"]
KUBERNETES, SKYPILOT = DEPLOY / "kubernetes", DEPLOY / "skypilot"
SET = document(KUBERNETES / "statefulset.yaml")["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
COMPOSED = document(COMPOSE)["services"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def variables_of_pod(name: str) -> dict[str, str]:
    """The container's variables, as Kubernetes expands them for the pod `name`."""
    found = {"POD_NAME": name}
    for each in CONTAINER["env"]:
        if "value" in each:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], each["value"])
    return found


def test_every_yaml_file_parses() -> None:
    files = sorted(DEPLOY.rglob("*.yaml"))
    assert len(files) >= 9 and all(all(documents(file)) for file in files)


def test_the_parser_of_these_tests_refuses_what_the_command_refuses() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["up", "--netwrk", "tiny"])
    with pytest.raises(click.UsageError):
        parsed(["up", "--network", "tiny", "train.py"])


@pytest.mark.parametrize(("files", "command"), [((UNIT,), "up"), ((UNIT, JOIN), "join")])
def test_systemd(files: tuple[Path, ...], command: str, tmp_path: Path) -> None:
    given = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd" / "network.env").read_text(encoding="utf-8"), re.M))
    words = exec_start(*files, instance="tiny", state=Path("/var/lib"), variables=given)
    line = parsed(words[1:])
    assert (line.command, line.training) == (command, shlex.split(given["TRAIN"]))
    assert words[words.index("--home") + 1] == "/var/lib/gossipdp/tiny/home"
    assert command == "join" or line.config.network.name == "tiny"
    keys = unit(*files)
    assert {each.replace("%i", "tiny") for each in keys["StateDirectory"][0].split()} >= {"gossipdp/tiny"}
    assert keys["EnvironmentFile"] == ["/etc/gossipdp/%i.env"] and ("StandardInput" in keys) == (command == "join")
    assert seconds(keys["TimeoutStopSec"][0]) >= PATIENCE
    assert keys["KillMode"] == ["mixed"] and keys["KillSignal"] == ["SIGTERM"]


def test_systemd_restarts_no_peer_that_no_restart_helps() -> None:
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`RestartPreventExitStatus=(.*?)`", text)
    assert unit(UNIT)["RestartPreventExitStatus"] == [told]


def test_compose() -> None:
    founder, joiner, invite = COMPOSED["founder"], COMPOSED["joiner"], COMPOSED["invite"]
    lines = [parsed(service["command"], service["environment"]) for service in (founder, joiner)]
    assert [line.command for line in lines] == ["up", "join"] and all(line.training == TRAIN for line in lines)
    for name, line in zip(("founder", "joiner"), lines, strict=True):
        assert line.config.network.advertise == (f"{name}:4710",) and line.config.network.listen.endswith(":4710")
        assert seconds(COMPOSED[name]["stop_grace_period"]) >= PATIENCE
    # The invite goes from the founder's home to where the joiner reads it.
    source, target = invite["entrypoint"][1:]
    assert source == "/founder/home/invite" and "founder:/founder:ro" in invite["volumes"]
    assert target == "/data/invite" and "invite:/data" in invite["volumes"] and "invite:/invite:ro" in joiner["volumes"]
    assert joiner["command"][1] == "@/invite/invite"


def test_image() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", "")
    found = {key: json.loads(value) for key, value in re.findall(r"^ *(ENTRYPOINT|CMD) (\[.*\])$", text, re.M)}
    assert found["ENTRYPOINT"] == ["tini", "--", "gossipdp"] and re.search(r"^STOPSIGNAL SIGTERM$", text, re.M)
    assert re.search(r"^EXPOSE 4710$", text, re.M) and re.search(r"GOSSIPDP_HOME=/data/home\b", text)
    user = re.findall(r"^USER (.*)$", text, re.M)[-1]
    assert user == "1010:1010" == COMPOSED["founder"]["user"]
    assert {POD["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {1010}
    # What the image copies exists, and is not left out of the build's context.
    kept = re.findall(r"^!(.*)$", (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(), re.M)
    copied = [name for words in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for name in words.split()[:-1]]
    assert copied and all((ROOT / name).exists() and name in kept for name in copied)


@pytest.mark.parametrize("code", [0, 1, 4, 5, 10, 11, 12, 13, 14, 15])
def test_checks_take_the_verdict_for_what_it_is(shell: Shell, code: int) -> None:
    shell.add("gossipdp", f'echo "$@" >> {shell.folder}/asked; exit {code}')
    text = DOCKERFILE.read_text(encoding="utf-8")
    (health,) = re.findall(r'CMD (\["sh".*\])$', text, re.M)
    assert shell.run(*json.loads(health)).returncode == (0 if code == 0 or code >= 10 else 1)
    ready = shell.run(*CONTAINER["readinessProbe"]["exec"]["command"]).returncode == 0
    assert ready == (code in (0, 1, 10, 12, 14)), "a pod that joins, starts or leaves is not ready"
    asked = (shell.folder / "asked").read_text().splitlines()
    assert asked == ["status --check"] * 2 and parsed(asked[0].split()).command == "status"


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def start(shell: Shell, pod: str, *, invite: str = "", home: str = "") -> subprocess.CompletedProcess[str]:
    """Run start.sh in a pod with this Secret, and this file in its home."""
    where = shell.folder / "home"
    if home:
        (where / home).parent.mkdir(parents=True)
        (where / home).touch()
    (shell.folder / "invite").write_text(invite)
    variables = {**variables_of_pod(pod), "GOSSIPDP_HOME": str(where), "INVITE": str(shell.folder / "invite")}
    shell.add("sleep", 'echo "sleep $@"; exit 9')
    words = CONTAINER["command"]
    assert words[:3] == ["tini", "--", "sh"] and words[3] == "/etc/gossipdp/start.sh"
    return shell.run("sh", START, *CONTAINER["args"], **variables)


@pytest.mark.parametrize(("pod", "home"), [("peer-0", ""), ("peer-0", "network.json"), ("peer-2", "network.json")])
def test_pod__without_a_secret_the_first_founds_and_a_known_home_goes_on(shell: Shell, pod: str, home: str) -> None:
    assert start(shell, pod, home=home).returncode == 0
    ((line, given, _),) = shell.calls()
    assert (line.command, line.training, given) == ("up", TRAIN, "")
    network = line.config.network
    assert (network.name, network.peer, network.advertise) == ("tiny", pod, (f"{pod}.peer:4710",))


@pytest.mark.parametrize(("pod", "home"), [("peer-0", ""), ("peer-0", "network.json"), ("peer-1", "")])
def test_pod__with_the_secret_each_joins_by_it(shell: Shell, pod: str, home: str) -> None:
    assert start(shell, pod, invite="the invite", home=home).returncode == 0
    ((line, given, _),) = shell.calls()
    assert (line.command, line.training, given) == ("join", TRAIN, "the invite")
    assert line.config.network.advertise == (f"{pod}.peer:4710",) and len(line.config.network.seeds) == SET["replicas"]


def test_pod__a_joiner_waits_for_the_secret_and_a_finished_one_rests(shell: Shell) -> None:
    waits = start(shell, "peer-1")
    assert waits.returncode == 9 and waits.stdout == "waiting for the Secret with the invite\nsleep 10\n"
    rests = start(shell, "peer-1", invite="the invite", home="final/final.json")
    assert rests.returncode == 9 and rests.stdout.endswith("/home/final\nsleep infinity\n") and not shell.calls()


def test_kubernetes_files_agree() -> None:
    (service,) = documents(KUBERNETES / "service.yaml")
    (policy,) = documents(KUBERNETES / "network-policy.yaml")
    (budget,) = documents(KUBERNETES / "disruption-budget.yaml")
    (monitor,) = documents(KUBERNETES / "service-monitor.yaml")
    label = SET["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    variables = variables_of_pod("peer-0")
    assert ports["peer"] == 4710 and variables["GOSSIPDP_METRICS_LISTEN"] == f"0.0.0.0:{ports['metrics']}"
    spec = service["spec"]
    assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] and spec["selector"] == label
    assert service["metadata"]["name"] == SET["serviceName"] and service["metadata"]["labels"] == label
    assert {each["name"]: each["port"] for each in spec["ports"]} == ports
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == [ports["peer"], ports["metrics"]]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and monitor["kind"] == "ServiceMonitor"
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    assert [(end["port"], end["path"]) for end in monitor["spec"]["endpoints"]] == [("metrics", "/metrics")]
    selectors = [
        SET["selector"],
        policy["spec"]["podSelector"],
        budget["spec"]["selector"],
        monitor["spec"]["selector"],
    ]
    assert [selector["matchLabels"] for selector in selectors] == [label] * 4
    assert POD["terminationGracePeriodSeconds"] >= PATIENCE
    assert variables["GOSSIPDP_NETWORK_SEEDS"].split(",") == [f"peer-{n}.peer:4710" for n in range(SET["replicas"])]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert variables["INVITE"] == f"{mounts['invite']}/invite" and variables["GOSSIPDP_HOME"] == "/data/home"
    assert mounts["data"] == CONTAINER["workingDir"] == "/data" and mounts["start"] == "/etc/gossipdp"
    (listed,) = documents(KUBERNETES / "kustomization.yaml")
    assert all((KUBERNETES / name).exists() for name in listed["resources"])
    assert listed["configMapGenerator"] == [{"name": "start", "files": ["start.sh"]}]


# -- SkyPilot and Slurm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), [("founder", "up"), ("joiner", "join")])
def test_skypilot(shell: Shell, name: str, command: str) -> None:
    (task,) = documents(SKYPILOT / f"{name}.yaml")
    shutil.copytree(shell.folder / "bin", shell.folder / "venv" / "bin")
    seeds = {"GOSSIPDP_NETWORK_SEEDS": "203.0.113.7:4710"} if command == "join" else {}
    given = {key: value for key, value in task["envs"].items() if value is not None} | seeds
    assert set(given) == set(task["envs"])
    done = shell.run("bash", "-c", task["run"], HOME=str(shell.folder), **given)
    assert done.returncode == 0, done.stderr
    ((line, _, variables),) = shell.calls()
    assert line.command == command and line.training[1:] == TRAIN[1:] and line.training[0].endswith("/venv/bin/python")
    assert line.config.network.seeds == tuple(seeds.values()) and str(task["resources"]["ports"]) == "4710"
    assert line.config.network.listen.endswith(":4710") and variables.get("NETWORK") == given.get("NETWORK")
    assert ("GOSSIPDP_INVITE" in task.get("secrets", {})) == (command == "join")
    assert task["resources"]["use_spot"] == (command == "join")


SRUN = """
while [ "$1" != bash ]; do shift; done
echo "an invite" > "$RUN/first"; mkdir -p "$RUN/peer-0"; mv "$RUN/first" "$RUN/peer-0/invite"
SLURM_PROCID=1 SLURMD_NODENAME=n7 "$@" && SLURM_PROCID=0 SLURMD_NODENAME=n5 "$@"
[ -z "$SIGNALLED" ] || { kill -TERM $PPID; sleep 0.2; }
"""
"""Runs the command for both tasks, and passes Slurm's signal to the script on."""


@pytest.mark.parametrize("told", [False, True])
def test_slurm(shell: Shell, told: bool) -> None:
    shell.add("srun", SRUN)
    shell.add("scancel", 'echo "scancel $@"')
    shell.add("scontrol", 'if [ "$1" = show ]; then printf "n5\\nn7\\n"; else echo "scontrol $@"; fi')
    run, job = shell.folder / "run", {"SLURM_SUBMIT_DIR": str(shell.folder), "SLURM_JOB_ID": "12"}
    variables = {**job, "RUN": str(run), "SLURM_JOB_NODELIST": "n[5,7]", "SIGNALLED": "1" if told else ""}
    done = shell.run("bash", SBATCH, *TRAIN, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    said = "scancel --signal=TERM 12\nthe peers have left, and the job is queued again\nscontrol requeue 12\n"
    assert done.stdout == (said if told else "")
    joiner, founder = shell.calls()
    assert (founder.line.command, joiner.line.command) == ("up", "join")
    for number, (call, node) in enumerate([(founder, "n5"), (joiner, "n7")]):
        network = call.line.config.network
        assert network.advertise == (f"{node}:{4710 + number}",) and network.listen == f"tcp://*:{4710 + number}"
        assert network.seeds == ("n5:4710", "n7:4711") and call.line.training == TRAIN
        assert call.variables["GOSSIPDP_HOME"] == f"{run}/peer-{number}"


def test_slurm__a_finished_run_is_not_queued_again(shell: Shell) -> None:
    shell.add("srun", 'mkdir -p "$RUN/peer-0/final"; : > "$RUN/peer-0/final/final.json"; kill -TERM $PPID')
    shell.add("scancel", "")
    shell.add("scontrol", "[ $1 = show ] || echo called")
    done = shell.run(
        "bash", SBATCH, *TRAIN, SLURM_SUBMIT_DIR=str(shell.folder), SLURM_JOB_ID="1", SLURM_JOB_NODELIST="n"
    )
    assert done.stdout == f"the run is finished: the final model is in {shell.folder}/gossipdp-run/peer-0/final\n"


def test_slurm_signals_early_enough_and_asks_for_one_task_a_node() -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", SBATCH.read_text(encoding="utf-8"), re.M))
    assert options["ntasks-per-node"] == "1" and "requeue" in options and options["open-mode"] == "append"
    whom, lead = re.fullmatch(r"(B:TERM)@(\d+)", options["signal"]).groups()  # type: ignore[union-attr]
    assert whom == "B:TERM" and int(lead) - 60 >= PATIENCE, "Slurm may send it a minute late"
