# Copyright: the Skep developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
"""Runs `skep deploy` on the controller with the hosts of the inventory.

`module_utils/hosts_file.py` owns the contents of the hosts file, `skep deploy` all work on the
hosts, and `modules/deploy.py` the documentation of the options.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.skep.cluster.plugins.module_utils.hosts_file import (
    InventoryError,
    hosts_file,
)

STATES = ("present", "upgraded", "removed", "absent")


class ActionModule(ActionBase):
    """The action `skep.cluster.deploy`."""

    # The program connects to the hosts by itself.
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "state": {"type": "str", "choices": list(STATES), "default": "present"},
                "host": {"type": "str"},
                "destroy_data": {"type": "bool", "default": False},
                "confirm": {"type": "str"},
                "skip_absent": {"type": "bool", "default": False},
                "remount": {"type": "bool", "default": False},
                "program": {"type": "path", "default": "skep"},
                "new_program": {"type": "path"},
                "hosts_file": {"type": "path"},
            },
            required_if=[("state", "removed", ["host"])],
        )
        path = self._write(options["hosts_file"], task_vars)
        result.update(self._deploy(options, path))
        return result

    def _write(self, path, task_vars):
        """Writes the hosts file, and returns its path."""
        try:
            text = hosts_file(task_vars["groups"], task_vars["hostvars"], os.getcwd())
        except InventoryError as error:
            raise AnsibleActionFail(str(error)) from error
        if not path:
            management = task_vars["hostvars"][task_vars["groups"]["skep_management"][0]]
            # An inventory on the command line (`-i host,`) has no directory.
            directory = management.get("inventory_dir") or os.getcwd()
            path = os.path.join(directory, "skep-hosts.toml")
        try:
            with open(path, encoding="utf-8") as file:
                if file.read() == text:
                    return path
        except FileNotFoundError:
            pass
        # A run in check mode needs the file too. It describes the inventory, and no host uses it.
        directory = os.path.dirname(os.path.abspath(path))
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=directory, delete=False
        ) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
        return path

    def _deploy(self, options, path):
        """Runs the command for the state that the options ask for. Returns the result."""
        state = options["state"]
        if self._task.check_mode and state != "present":
            message = "check mode: `skep deploy plan` compares hosts only with the state present"
            return {"skipped": True, "changed": False, "msg": message}
        command = {
            "present": ["plan" if self._task.check_mode else "apply"],
            "upgraded": ["upgrade"],
            "removed": ["remove", options["host"]],
            "absent": ["destroy"],
        }[state]
        if state == "upgraded" and options["remount"]:
            command.append("--remount")
        if state in ("removed", "absent") and options["destroy_data"]:
            command.append("--destroy-data")
        if state == "removed" and options["confirm"]:
            command += ["--confirm", options["confirm"]]
        if state == "absent" and options["skip_absent"]:
            command.append("--skip-absent")
        if options["new_program"]:
            command += ["--program", options["new_program"]]
        command = [options["program"], "deploy", *command, "--hosts", path, "--output", "json"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise AnsibleActionFail(
                "cannot run %s: %s; install Skep on the controller, or set `program` to its path"
                % (options["program"], error)
            ) from error
        report = _json(done.stdout)
        result = {
            "command": command,
            "hosts_file": path,
            "rc": done.returncode,
            "hosts": report.get("hosts", []),
            "warnings": ["%(host)s: %(problem)s" % it for it in report.get("warnings", [])],
            "problems": ["%(host)s: %(problem)s" % it for it in report.get("problems", [])],
            "steps": report.get("steps", []),
        }
        result["changed"] = any(_changes(step) for step in result["steps"])
        if done.returncode or result["problems"]:
            result["failed"] = True
            result["msg"] = _error(done, result["problems"])
            if command[2] == "plan":
                result.update({"changed": False, "steps": []})
        return result


def _changes(step):
    """Whether a step changes a host. The others wait for the cluster, or verify it."""
    return step["phase"] != "health" and not step["phase"].startswith("verify")


def _json(text):
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _error(done, problems):
    """Returns the error of the program in one text."""
    # The program prints its progress first, and its error in the last line.
    lines = done.stderr.strip().splitlines()
    error = _json(lines[-1]).get("error", {}) if lines else {}
    text = error.get("message") or "\n".join(problems) or done.stderr.strip()
    return text or "skep deploy ended with exit code %d" % done.returncode
