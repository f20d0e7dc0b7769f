"""The units, the containers and the certificates that docs/deploy.md shows."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from kedge.flower.node import command_lines
from tests.flower.processes import PAGE, certificates

UNITS = re.findall(
    r"^`/etc/systemd/system/(\S+\.service)`.*?```ini\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
SERVICES = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program}")


def starts(unit):
    (line,) = re.findall(r"^ExecStart=(.*?[^\\])$", unit, re.DOTALL | re.MULTILINE)
    return line.replace("\\\n", " ").replace("%i", "0")


COMMANDS = [starts(unit) for _, unit in UNITS] + [each["command"] for each in SERVICES["services"].values()]


@needs("systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    assert len(UNITS) == 2
    for name, unit in UNITS:
        path = tmp_path / name.replace("@", "@0")
        path.write_text(re.sub(r"/opt/kedge/bin/(?=kedge|flower)\S+", sys.executable, unit))
        done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert path.name not in done.stderr  # it only warns of an unknown key


@pytest.mark.parametrize("command", COMMANDS)
def test_flower_accepts_the_commands(command):
    program, *arguments = shlex.split(command)
    if program.endswith("kedge"):
        assert arguments[:3] == ["flower", "node", "--"]
        node, _ = command_lines(arguments[3:])
        given = _parse_args_run_supernode().parse_args(node[1:])
        assert re.fullmatch(r'client=\d state-dir="/var/lib/kedge.*"', given.node_config)
    else:
        assert program.endswith("flower-superlink")
        assert _parse_args_run_superlink().parse_args(arguments).enable_supernode_auth


def test_every_client_of_the_containers_has_a_volume_of_its_own():
    volumes = [service["volumes"][0] for service in SERVICES["services"].values()]
    assert sorted(volumes) == sorted(f"{name}:/var/lib/kedge" for name in SERVICES["volumes"])


@needs("openssl")
@needs("ssh-keygen")
def test_the_certificate_is_valid_for_the_superlinks_own_processes(tmp_path):
    certificates(tmp_path / "tls")
    for address in (["-verify_hostname", "localhost"], ["-verify_ip", "127.0.0.1"]):
        command = ["openssl", "verify", "-CAfile", "ca.crt", *address, "server.pem"]
        done = subprocess.run(command, cwd=tmp_path / "tls", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
