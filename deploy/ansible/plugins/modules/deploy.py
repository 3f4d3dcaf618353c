#!/usr/bin/python
# Copyright: the Skep developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
"""The documentation of the action `deploy`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: deploy
short_description: Deploys, extends, upgrades and removes a cluster of Skep
version_added: "1.0.0"
description:
  - Writes the hosts file of C(skep deploy) from the inventory, and runs C(skep deploy) on the
    controller. That command connects to the hosts over ssh by itself.
  - The groups C(skep_management), C(skep_metadata), C(skep_storage), C(skep_monitor) and
    C(skep_client) give hosts their roles. The variables C(skep_*) are described in the README of
    the collection.
  - Needs C(skep) on the controller. Run it once, for example on C(localhost).
options:
  state:
    description:
      - V(present) makes the cluster that the inventory describes, or completes or extends it.
        In check mode it only compares, as C(skep deploy plan) does.
      - V(upgraded) replaces the program on all hosts, and restarts one service after the other.
      - V(removed) removes the host O(host) from the cluster.
      - V(absent) removes the cluster from all hosts.
    type: str
    choices: [present, upgraded, removed, absent]
    default: present
  host:
    description: Name of the host to remove, with O(state=removed).
    type: str
  destroy_data:
    description: Delete data of the cluster with V(removed) and V(absent). Without it, hosts that
      hold data stay as they are, and the task fails.
    type: bool
    default: false
  confirm:
    description: With O(state=removed) and O(destroy_data=true), the name of the host a second time.
      Needed if files of the cluster lie on targets of the host. These files are lost.
    type: str
  skip_absent:
    description: With O(state=absent), leave out hosts that do not answer.
    type: bool
    default: false
  remount:
    description: With O(state=upgraded), mount clients anew at the end. Fails if programs use a
      mount.
    type: bool
    default: false
  program:
    description: Path of C(skep) on the controller.
    type: path
    default: skep
  new_program:
    description: Program to install on the hosts. By default this is O(program).
    type: path
  hosts_file:
    description: Path of the hosts file on the controller. The default is C(skep-hosts.toml) in the
      directory of the inventory. Commands such as C(skep deploy status) can use it.
    type: path
attributes:
  check_mode:
    description: Reports what would change, with O(state=present). Other states are skipped.
    support: partial
author:
  - The Skep developers (@skep)
"""

EXAMPLES = r"""
- name: Deploy the cluster that the inventory describes
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Deploy
      skep.cluster.deploy:
        state: present

    - name: Upgrade to another program
      skep.cluster.deploy:
        state: upgraded
        new_program: ./skep-new
"""

RETURN = r"""
hosts:
  description: The hosts as C(skep deploy) found them, with kernel, version, services and mount.
  returned: always
  type: list
  elements: dict
steps:
  description: The steps, each with phase, host, text, duration and error.
  returned: always
  type: list
  elements: dict
problems:
  description: What is in the way of a deployment, with the way out.
  returned: always
  type: list
  elements: str
hosts_file:
  description: Path of the hosts file on the controller.
  returned: always
  type: str
"""
