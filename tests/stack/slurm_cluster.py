"""A Slurm of two nodes on this machine: munge, one controller, and a daemon for each node."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from programs import find, free_port, running, wait_for

NODES = ("nodea", "nodeb")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=20
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=nodea NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=1000
NodeName=nodeb NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=1000
PartitionName=gpu Nodes=nodea,nodeb Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=nodea,nodeb MaxTime=INFINITE State=UP PriorityTier=2
"""


@dataclass
class SlurmCluster:
    """The cluster in `folder`; `environ` is the environment of its commands."""

    folder: Path
    environ: dict[str, str]
    _daemons: dict[str, ExitStack] = field(default_factory=dict)

    def command(self, *arguments: str, **environ: str) -> str:
        """The output of a command of Slurm. Raises CalledProcessError."""
        done = subprocess.run(
            arguments,
            env=self.environ | environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def submit(self, *options: str, environ: Mapping[str, str]) -> str:
        """Submit a job with `sbatch`, whose output is in `<id>.out`; its id."""
        output = f"--output={self.folder}/%j.out"
        return self.command("sbatch", "--parsable", output, *options, **environ).strip()

    def fields(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of a job."""
        text = self.command("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def wait_for_state(self, job: str, *states: str) -> None:
        """Wait until the job has one of the states."""
        wait_for(f"job {job} {states}", lambda: self.fields(job)["JobState"] in states)

    def output(self, job: str) -> str:
        """What the job has printed."""
        path = self.folder / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self, job: str, node: str) -> set[psutil.Process]:
        """The processes of a job on a node, and the daemons of its steps there."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environ = process.environ()
                own = {"SLURM_CONF": self.environ["SLURM_CONF"], "SLURM_JOB_ID": job}
                if {**own, "SLURMD_NODENAME": node}.items() <= environ.items():
                    found |= {process, *filter(_is_step_daemon, process.parents()[:1])}
        return found

    def lose_node(self, node: str, jobs: Sequence[str]) -> None:
        """Kill the daemon of a node and all processes of jobs on it, and declare the node down."""
        processes = set[psutil.Process]().union(*(self.processes(job, node) for job in jobs))
        # The daemon of a step would report the end of its processes: the job would have failed.
        for process in sorted(processes, key=_is_step_daemon, reverse=True):
            with suppress(psutil.Error):
                process.kill()
        self._daemons.pop(node).close()
        # The controller would find out within a minute.
        self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        daemon = ExitStack()
        daemon.enter_context(
            running(
                self.folder / f"{node}.log",
                _daemon("slurmd"),
                "-D",
                "-N",
                node,
                "-f",
                self.environ["SLURM_CONF"],
                env=self.environ,
            )
        )
        self._daemons[node] = daemon

    def close(self) -> None:
        """Cancel the jobs, wait for their ends, and stop the nodes."""
        self.command("scancel", "--user", getpass.getuser())
        wait_for("no job is left", lambda: not self.command("squeue", "--noheader").strip())
        for daemon in self._daemons.values():
            daemon.close()


@contextmanager
def slurm_cluster(folder: Path, environ: Mapping[str, str]) -> Iterator[SlurmCluster]:
    """A cluster whose state is in `folder`; skips the test if a program is missing."""
    find("sbatch")
    (folder / "state").mkdir()
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=folder,
            ports=[free_port() for _ in range(3)],
        )
    )
    environ = {**environ, "SLURM_CONF": str(config)}
    with ExitStack() as daemons:
        daemons.enter_context(_munge(folder))
        daemons.enter_context(
            running(
                folder / "slurmctld.log", _daemon("slurmctld"), "-D", "-f", str(config), env=environ
            )
        )
        cluster = SlurmCluster(folder, environ)
        for node in NODES:
            cluster.start_node(node)
        wait_for("two idle nodes", lambda: _idle_nodes(cluster) == len(NODES))
        try:
            yield cluster
        finally:
            cluster.close()


@contextmanager
def _munge(folder: Path) -> Iterator[None]:
    """The daemon by which commands and daemons of Slurm know each other, with a new key."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    socket_path = folder / "munge.sock"
    with running(
        folder / "munged.log",
        _daemon("munged"),
        "--foreground",
        # Other users need not reach it.
        "--force",
        f"--key-file={key}",
        f"--socket={socket_path}",
        f"--pid-file={folder}/munged.pid",
        f"--seed-file={folder}/munged.seed",
    ):
        wait_for("munged", socket_path.exists)
        yield


def _daemon(name: str) -> str:
    """Path of a program that need not be on the PATH of a user."""
    return find(name, f"/usr/sbin/{name}")


def _is_step_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() == "slurmstepd"
    return False


def _idle_nodes(cluster: SlurmCluster) -> int:
    try:
        listed = cluster.command("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T")
    except AssertionError:
        # The controller has not started yet.
        return 0
    return listed.split().count("idle")
