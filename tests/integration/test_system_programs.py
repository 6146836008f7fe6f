"""scripts/system_programs.py installs what tests use; without it they are skipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "system_programs.py"
AFFECTED = ("tests/stack", "tests/browser", "tests/unit/docs/test_scale_page.py")
EVERYTHING = (
    "make",
    "gcc",
    "prometheus",
    "promtool",
    "amtool",
    "victoria-metrics",
    "vmalert",
    "munge",
    "sbatch",
    "systemd-analyze",
    "chromium-headless-shell",
    "openssl",
)

# The script, as a user of that number, with another policy file and other time limits.
RUN = """
import os, sys
from pathlib import Path
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import system_programs
user = int(sys.argv[2])
os.geteuid = lambda: user
system_programs.POLICY = Path(sys.argv[3])
if float(sys.argv[4]):
    system_programs.UPDATE_SECONDS = system_programs.DOWNLOAD_SECONDS = float(sys.argv[4])
del sys.argv[1:5]
system_programs.main()
"""


class Machine:
    """A PATH of its own, with a log of what was called and a policy file."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log, self.policy = folder / "bin", folder / "log", folder / "policy-rc.d"
        self.path.mkdir()
        self.log.write_text("")
        for name in ("sh", "env", "chmod", "rm", "touch"):
            (self.path / name).symlink_to(Path("/bin", name))

    def add(self, name: str, script: str = "") -> None:
        """A program that logs its call, and then runs these lines of sh."""
        text = f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{script}\n'
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def add_apt(self, *, installs: bool = True, code: int = 0, unknown: str = "") -> None:
        """An apt-get that logs whether services may start; it may install every program.

        It installs nothing if one of the packages is `unknown`.
        """
        names = [*EVERYTHING, "prometheus-alertmanager"] if installs else []
        made = [f"touch {self.path}/{name}; chmod 755 {self.path}/{name}" for name in names]
        asked = f'sh {self.policy}; echo "policy $?" >>{self.log}'
        refuses = f'case "$*" in *{unknown or "no-package"}*) exit 100;; esac'
        only = f'case "$*" in *install*--no-download*) ;; *) exit {code};; esac'
        self.add("apt-get", "\n".join([asked, refuses, only, *made, f"exit {code}"]))

    def run(
        self, command: str, user: int = 0, seconds: float = 0, **environment: str
    ) -> tuple[int, str]:
        """Exit code and output of the script for that user; `seconds` limits calls of apt-get."""
        own = [str(user), self.policy, str(seconds)]
        arguments = [sys.executable, "-c", RUN, SCRIPT, *own, command]
        environment |= {"PATH": str(self.path)}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(arguments, env=environment, check=False, **output)
        return done.returncode, done.stdout

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_root_installs_what_is_missing_and_no_service_starts(machine):
    machine.add_apt()
    machine.add("openssl")

    code, output = machine.run("install")

    assert code == 0
    assert "Installing make gcc" in output
    update, first, download, second, install, third = machine.calls()
    assert (first, second, third) == ("policy 101",) * 3
    assert update.endswith("update")
    packages = "make gcc libc6-dev prometheus prometheus-alertmanager"
    packages += (
        " victoria-metrics munge slurm-wlm systemd chromium-headless-shell fonts-dejavu-core"
    )
    assert download.endswith(f"--download-only {packages}")
    assert install.endswith(f"--no-download {packages}")
    assert not machine.policy.exists()
    assert machine.run("report") == machine.run("install") == (0, "")
    assert len(machine.calls()) == 6


def test_a_package_that_is_unknown_prevents_no_other(machine):
    machine.add_apt(unknown="chromium-headless-shell")

    assert machine.run("install")[0] == 0
    assert [line for line in machine.calls() if line.endswith("--no-download openssl")]
    assert not machine.policy.exists()


def test_an_installation_that_is_terminated_leaves_no_policy(machine):
    machine.add_apt()
    machine.add("apt-get", f"kill -TERM $PPID; sh {machine.policy}; exit 0")

    assert machine.run("install")[0] == 128 + 15
    assert not machine.policy.exists()


def test_a_policy_that_a_killed_installation_left_is_removed(machine):
    machine.add_apt()
    machine.add("apt-get", "kill -KILL $PPID")
    assert machine.run("install")[0] == -9
    assert machine.policy.exists()

    machine.add_apt()
    assert machine.run("install")[0] == 0
    assert "policy 101" in machine.calls()
    assert not machine.policy.exists()


def test_a_repository_that_does_not_answer_ends_in_a_report(machine):
    (machine.path / "sleep").symlink_to("/bin/sleep")
    machine.add("apt-get", "exec sleep 600")

    assert machine.run("install", seconds=0.2)[0] == 0
    assert "not tested: pages" in machine.run("report")[1]
    assert not machine.policy.exists()


@pytest.mark.parametrize("code", [0, 100])
def test_an_installation_without_effect_ends_in_a_report(machine, code):
    machine.add_apt(installs=False, code=code)

    assert machine.run("install")[0] == 0
    assert not machine.policy.exists()
    assert machine.run("report")[0] == 0


def test_an_installation_without_effect_is_an_error_where_programs_are_required(machine):
    machine.add_apt(installs=False)
    code, output = machine.run("install", SENTINEL_REQUIRE_STACK="1")

    assert code == 1
    assert "not tested: alerts through Alertmanager" in output


def test_the_policy_of_an_administrator_is_kept(machine):
    machine.policy.write_text("exit 104\n")
    machine.add_apt()
    machine.run("install")

    assert machine.calls()[1] == "policy 104"
    assert machine.policy.read_text() == "exit 104\n"


def test_the_report_names_what_was_not_tested_and_one_command(machine):
    *lines, command, _ = machine.run("report", user=1000)[1].splitlines()

    names = "chromium-headless-shell or chromium or chromium-browser"
    assert f"not tested: pages ({names} is not installed)" in lines
    assert command == "To test this too: sudo python3 scripts/system_programs.py install"


@pytest.mark.parametrize(
    ("user", "environment"),
    [(1000, {}), (1000, {"CI": "false"}), (0, {"SENTINEL_INSTALL_PROGRAMS": "0"})],
)
def test_nothing_is_called_for_a_developer_or_who_opts_out(machine, user, environment):
    for name in ("apt-get", "sudo"):
        machine.add(name)

    assert machine.run("install", user=user, **environment) == (0, "")
    assert machine.calls() == []


def test_ci_uses_sudo_where_that_asks_for_no_password(machine):
    machine.add_apt()
    machine.add("sudo", 'test "$2" = true || { shift; exec "$@"; }')

    assert machine.run("install", user=1000, CI="true")[0] == 0
    assert machine.calls()[0] == "sudo -n true"
    assert "policy 101" in machine.calls()
    assert machine.run("report", user=1000) == (0, "")


def test_tests_are_skipped_where_no_program_is_installed(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *AFFECTED]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-1]

    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) skipped", last)[1]) > 300
