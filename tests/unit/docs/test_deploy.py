"""The files in `deploy/` keep what they promise: no root, no capabilities, nothing exposed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from programs import find

from sentinel import __version__
from sentinel.config.settings import load_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
JOBS = sorted((DEPLOY / "slurm").glob("*.sh"))
DOCKERFILE = DEPLOY / "container" / "Dockerfile"


@pytest.fixture(scope="module")
def pod():
    return yaml.safe_load((DEPLOY / "kubernetes" / "job" / "job.yaml").read_text())["spec"][
        "template"
    ]["spec"]


def unit(path):
    """The values of each key of a unit, in their order."""
    values = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name, []).append(value)
    return values


def environment(container):
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.fault("X15")
def test_no_container_of_the_pod_has_rights(pod):
    containers = [*pod["initContainers"], *pod["containers"]]

    assert len(containers) == 2
    for container in containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod.keys().isdisjoint({"hostNetwork", "hostPID", "hostIPC"})


@pytest.mark.fault("X15")
def test_the_agent_of_the_pod_outlives_the_training_and_sees_it(pod):
    (agent,), (training,) = pod["initContainers"], pod["containers"]

    assert agent["restartPolicy"] == "Always"
    assert pod["shareProcessNamespace"] is True
    assert agent["volumeMounts"] == training["volumeMounts"]
    wait = {"SENTINEL_FIRST_RANK_SECONDS": "86400"}
    assert environment(agent) == environment(training) | wait
    assert agent["args"][:3] == ["agent", "--run", environment(agent)["SENTINEL_RUN_ID"]]
    assert training["command"][:3] == ["sentinel", "run", "--"]
    assert pod["terminationGracePeriodSeconds"] >= 30


@pytest.mark.fault("X15")
def test_everything_that_is_written_is_on_a_volume(pod):
    (agent,) = pod["initContainers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in agent["volumeMounts"]}
    written = [environment(agent)[name] for name in ("SENTINEL_HOME", "SENTINEL_RUNTIME_DIR")]

    assert [any(path.startswith(f"{mount}/") for mount in mounts) for path in written] == [True] * 2
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    # A secret, since the settings may contain one.
    assert "secret" in mounts["/etc/sentinel"]


@pytest.mark.fault("X15")
def test_images_are_pinned_and_ports_are_local(pod):
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    images = [service["image"] for service in compose.values()]
    images += [each["image"] for each in (*pod["initContainers"], *pod["containers"])]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)

    assert [image for image in images if not re.search(r":[v\d]*\d", image)] == []
    assert all("ports" not in service for service in compose.values())
    assert not any(service.get("privileged") for service in compose.values())


@pytest.mark.fault("X15")
def test_the_image_runs_without_root():
    lines = DOCKERFILE.read_text().splitlines()
    last_stage = lines[max(n for n, line in enumerate(lines) if line.startswith("FROM")) :]
    (user,) = [line.split()[1] for line in last_stage if line.startswith("USER")]

    assert int(user.split(":")[0]) > 0
    assert any("--constraint" in line for line in lines)
    assert [line for line in lines if re.match(r"ADD |.*(curl|wget) ", line)] == []


def test_the_demo_has_the_image_of_the_agent_and_no_rights(pod):
    demo = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["demo"]
    version = demo["image"].partition(":")[2]

    assert demo["image"] == pod["initContainers"][0]["image"]
    assert f"ARG REQUIREMENT=train-sentinel=={version}" in DOCKERFILE.read_text().splitlines()
    assert __version__.removesuffix(".dev0") == version
    assert demo["profiles"] == ["demo"]
    assert (demo["read_only"], demo["cap_drop"]) == (True, ["ALL"])
    assert (DEPLOY / "compose" / demo["build"]["context"]).resolve() == DEPLOY.parent
    assert DEPLOY.parent / demo["build"]["dockerfile"] == DOCKERFILE
    assert demo["entrypoint"][-1] == demo["volumes"][0].split(":")[1]


def test_the_wheel_can_be_built_from_what_the_image_is_given(tmp_path):
    """The files that `Dockerfile.dockerignore` excepts."""
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    for name in (line[1:] for line in ignored if line.startswith("!")):
        source, target = DEPLOY.parent / name, tmp_path / "source" / name
        if source.is_dir():
            unneeded = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, symlinks=True, ignore=unneeded)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheel"]
    done = subprocess.run(
        build, cwd=tmp_path / "source", capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    for path in (
        "web/runbooks/kl_blowup.md",
        "assets/files/constraints.txt",
        "demo/script/train.py",
    ):
        assert f"sentinel/{path}" in names


@pytest.mark.fault("X15")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_no_root_and_no_new_rights(path):
    values = unit(path)

    assert values["User"] == ["training"]
    assert values["NoNewPrivileges"] == ["yes"]
    assert values["StateDirectoryMode"] == ["0700"]
    assert "SENTINEL_HOME=/var/lib/sentinel" in values["Environment"]


@pytest.mark.fault("X15")
def test_the_agent_of_a_unit_is_started_again_and_outlives_the_training():
    agent, training = (unit(path) for path in UNITS)

    assert agent["Restart"] == ["on-failure"]
    assert agent["RestartPreventExitStatus"] == ["2"]
    assert agent["CapabilityBoundingSet"] == [""]
    assert agent["ProtectSystem"] == ["strict"]
    assert int(agent["OOMScoreAdjust"][0]) < 0
    assert training["Wants"] == ["sentinel-agent@%i.service"]
    assert training["OOMPolicy"] == ["continue"]
    assert "SENTINEL_RUN_ID=%i" in training["Environment"]


@pytest.mark.stack
@pytest.mark.parametrize(("added", "found"), [("", ""), ("Restarts=no", "'Restarts'")])
def test_the_units_are_valid(tmp_path, added, found):
    program = find("systemd-analyze")
    units = [tmp_path / path.name.replace("@", "@grpo-7b") for path in UNITS]
    for path, instance in zip(UNITS, units, strict=True):
        text = path.read_text().replace("/opt/sentinel/bin/sentinel", sys.executable)
        instance.write_text(f"{text}{added}\n")
    done = subprocess.run([program, "verify", *units], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert found in done.stderr
    assert bool(done.stderr) is bool(found), done.stderr


@pytest.mark.parametrize(("linter", "paths"), [("shellcheck", JOBS), ("hadolint", [DOCKERFILE])])
def test_linters_find_nothing(linter, paths):
    """Their programs are beside the interpreter of the development environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which(linter, path=path)
    assert program is not None
    done = subprocess.run([program, *paths], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_is_one_run_over_its_requeues_and_ends_with_its_agent(path):
    text = path.read_text()

    assert 'SENTINEL_RUN_ID="grpo-7b-$SLURM_JOB_ID"' in text
    assert "exec sentinel run" in text or "trap : TERM" in text


@pytest.mark.fault("X15")
def test_core_dependencies_are_few():
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)

    assert len(re.findall(r'^ *"', listed, re.MULTILINE)) <= 12


@pytest.mark.fault("X15")
def test_the_agent_listens_on_this_machine_only_by_default(tmp_path):
    assert load_settings({}, {}, tmp_path).host == "127.0.0.1"
