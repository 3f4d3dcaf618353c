# Copyright: the Skep developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
"""The hosts file of `skep deploy`, made from the variables of an Ansible inventory.

Pure: reads no file and starts no program, and does not depend on Ansible.
"""

from __future__ import annotations

import json
import posixpath

# The roles of `skep deploy`, in the order in which it starts them. The inventory has a group
# `skep_ROLE` for each.
ROLES = ("management", "metadata", "storage", "monitor", "client")

# The variables of a host that `skep deploy` calls `host.NAME`, with their types.
HOST_VARIABLES = {
    "network": list,
    "domain": str,
    "metadata_disks": list,
    "metadata_directories": list,
    "storage_disks": list,
    "storage_directories": list,
    "tune": bool,
    "cpus": str,
    "numa_node": int,
}

# The variables of the connection that `skep deploy` calls `ssh.NAME`. They must be the same on all
# hosts, since the hosts file has one value for all.
CONNECTION_VARIABLES = {
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "identity": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}

# Variables that change how Ansible connects, and that `skep deploy` does not know.
UNKNOWN_CONNECTION = ("ansible_ssh_common_args", "ansible_ssh_extra_args")


class InventoryError(Exception):
    """The inventory describes no cluster that `skep deploy` can make."""


def hosts_by_role(groups):
    """Returns the names of the hosts with a role, in the order of the inventory, each with its
    roles. `groups` is Ansible's dictionary of groups."""
    roles = {}
    for role in ROLES:
        for name in groups.get("skep_" + role, []):
            roles.setdefault(name, []).append(role)
    if not roles:
        raise InventoryError(
            "no host has a role: put hosts into the groups "
            + ", ".join("skep_" + role for role in ROLES)
        )
    if not groups.get("skep_management"):
        raise InventoryError(
            "no host runs management: put one, three or five hosts into the group skep_management"
        )
    return roles


def hosts_file(groups, variables, directory):
    """Returns the text of the hosts file.

    `variables` is a dictionary from the name of a host to its variables. The settings of the whole
    cluster are those of the first host in the group `skep_management`. A relative path of a private key
    begins in `directory`.
    """
    roles = hosts_by_role(groups)
    cluster = variables[groups["skep_management"][0]]
    lines = ["# Written by Ansible from its inventory. Changes of this file will be lost."]
    lines += _settings(cluster, {"skep_cluster": ("cluster", str)})
    # Without the group `skep_monitor`, `skep deploy` starts the monitor on the host of management.
    lines += _settings(cluster, {"skep_monitor": ("monitor", bool)})
    lines += _settings(cluster, {"skep_copies": ("copies", int)})
    lines += _settings(cluster, {"skep_metrics": ("metrics", bool)})
    lines += ["", "[ssh]"] + _ssh(roles, variables, directory)
    lines += _settings(cluster, {"skep_ssh_options": ("options", list)})
    mount = {"skep_mount_point": ("point", str), "skep_mount_options": ("options", str)}
    lines += ["", "[mount]"] + _settings(cluster, mount)
    keys = ("metadata_mkfs", "metadata_mount", "storage_mkfs", "storage_mount")
    disks = _settings(cluster, {"skep_" + key: (key, str) for key in keys})
    if disks:
        lines += ["", "[disks]"] + disks
    for name in roles:
        lines += ["", "[[host]]"] + _host(name, roles[name], variables[name])
    return "\n".join(lines) + "\n"


def _host(name, roles, variables):
    address = variables.get("skep_address") or variables.get("ansible_host") or name
    lines = [_line("name", name), _line("address", address), _line("roles", roles)]
    names = {"skep_" + key: (key, kind) for key, kind in HOST_VARIABLES.items()}
    return lines + _settings(variables, names)


def _ssh(roles, variables, directory):
    lines = []
    for key, names in CONNECTION_VARIABLES.items():
        of_hosts = {}
        for host in roles:
            values = [variables[host][name] for name in names if variables[host].get(name)]
            of_hosts.setdefault(str(values[0]) if values else "", []).append(host)
        if len(of_hosts) > 1:
            listed = "; ".join(
                "%s on %s" % (value or "none", ", ".join(hosts)) for value, hosts in of_hosts.items()
            )
            raise InventoryError(
                "%s differs between hosts (%s): give all hosts of the cluster the same value, or "
                "use ~/.ssh/config" % (names[0], listed)
            )
        value = next(iter(of_hosts))
        if value and key == "port":
            lines.append(_line(key, _port(names[0], value)))
        elif value and key == "identity" and not value.startswith("~"):
            lines.append(_line(key, posixpath.join(directory, value)))
        elif value:
            lines.append(_line(key, value))
    for host in roles:
        for name in UNKNOWN_CONNECTION:
            if variables[host].get(name):
                raise InventoryError(
                    "cannot use %s of host %s: set skep_ssh_options instead, for example "
                    '["ProxyJump=gate"]' % (name, host)
                )
    return lines


def _port(name, value):
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise InventoryError("invalid %s %r: expected a number from 1 to 65535" % (name, value))
    return int(value)


def _settings(variables, names):
    """Returns the lines for the variables in `names` that are set."""
    lines = []
    for variable, (key, kind) in names.items():
        value = variables.get(variable)
        if value is None:
            continue
        words = {
            list: "a list of texts", str: "a text", bool: "true or false", int: "a number"
        }
        # In Python, True and False are numbers too.
        is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is list and is_right:
            is_right = all(isinstance(item, str) for item in value)
        if not is_right:
            raise InventoryError("invalid %s %r: expected %s" % (variable, value, words[kind]))
        lines.append(_line(key, value))
    return lines


def _line(key, value):
    if isinstance(value, (list, tuple)):
        text = "[" + ", ".join(_text(str(item)) for item in value) + "]"
    elif isinstance(value, str):
        text = _text(str(value))
    else:
        text = json.dumps(value)
    return "%s = %s" % (key, text)


def _text(value):
    # A text of JSON is a text of TOML too, with two exceptions: TOML has no surrogates, which JSON
    # uses for characters above U+FFFF, and no unescaped DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
