"""Prints the user data of the hosts of a template as JSON: {roles: [text, number of hosts]}.

All metadata servers except the first one have the role "more metadata". The program evaluates the
functions of CloudFormation and of Azure Resource Manager that the templates in deploy/ use. Any
other function is an error. A cloud replaces each reference to a resource by an address. This program
replaces each such reference by the address of management.

Usage: render.py TEMPLATE ADDRESS [PARAMETER=VALUE]...
"""

import base64
import json
import re
import sys
import uuid

import yaml


class Node:
    """A call of a CloudFormation function in its short form, such as `!Ref`."""

    def __init__(self, name, value):
        self.name, self.value = name, value


def read_yaml(text):
    class Loader(yaml.SafeLoader):
        pass

    def construct(loader, tag, node):
        if isinstance(node, yaml.ScalarNode):
            return Node(tag, loader.construct_scalar(node))
        if isinstance(node, yaml.SequenceNode):
            return Node(tag, loader.construct_sequence(node, deep=True))
        return Node(tag, loader.construct_mapping(node, deep=True))

    Loader.add_multi_constructor("!", construct)
    return yaml.load(text, Loader)


class CloudFormation:
    def __init__(self, template, address, given):
        self.template, self.address = template, address
        self.parameters = {}
        for name, parameter in template["Parameters"].items():
            value = given.pop(name, parameter.get("Default"))
            assert value is not None, f"the parameter {name} has no value"
            pattern = parameter.get("AllowedPattern", ".*")
            assert re.fullmatch(pattern, str(value)), f"{name}={value} does not match {pattern}"
            self.parameters[name] = value
        assert not given, f"unknown parameters: {given}"

    def value(self, node):
        if isinstance(node, dict) and len(node) == 1 and "Fn::Base64" in node:
            return base64.b64encode(self.value(node["Fn::Base64"]).encode()).decode()
        if not isinstance(node, Node):
            return node
        return getattr(self, node.name.lower())(node.value)

    def ref(self, name):
        return self.parameters[name]

    def getatt(self, name):
        assert name == "ManagementInterface.PrimaryPrivateIpAddress", name
        return self.address

    def findinmap(self, keys):
        found = self.template["Mappings"]
        for key in keys:
            found = found[self.value(key)]
        return found

    def equals(self, pair):
        return str(self.value(pair[0])) == str(self.value(pair[1]))

    def join(self, parts):
        return parts[0].join(self.value(part) for part in parts[1])

    # `not` and `if` are keywords of Python, so they cannot be names of methods.
    def __getattr__(self, name):
        return {"not": self.negate, "if": self.choose}[name]

    def negate(self, condition):
        return not self.value(condition[0])

    def choose(self, parts):
        condition = self.value(self.template["Conditions"][parts[0]])
        return self.value(parts[1] if condition else parts[2])

    def sub(self, parts):
        text, local = parts if isinstance(parts, list) else (parts, {})
        local = {name: self.value(value) for name, value in local.items()}

        def replaced(match):
            return str(local.get(match[1], self.parameters.get(match[1])))

        return re.sub(r"\$\{([A-Za-z0-9]+)\}", replaced, text)

    def hosts(self):
        resources = self.template["Resources"]
        for name, resource in resources.items():
            properties = resource.get("Properties", {})
            if resource["Type"] == "AWS::EC2::Instance":
                yield self.value(properties["UserData"]), 1
            if resource["Type"] == "AWS::EC2::LaunchTemplate":
                group = resources[name.removesuffix("Template")]["Properties"]
                number = int(self.value(group["DesiredCapacity"]))
                yield self.value(properties["LaunchTemplateData"]["UserData"]), number


class ResourceManager:
    def __init__(self, template, given):
        self.template, self.parameters = template, {}
        for name, parameter in template["parameters"].items():
            value = given.pop(name, parameter.get("defaultValue"))
            assert value is not None, f"the parameter {name} has no value"
            if name != "location":
                self.parameters[name] = self.value(value)
        assert not given, f"unknown parameters: {given}"

    def value(self, text):
        if not isinstance(text, str) or not text.startswith("["):
            return text
        self.rest = text[1:-1]
        value = self.expression()
        assert not self.rest, f"unexpected {self.rest!r}"
        return value

    def take(self, pattern):
        match = re.match(pattern, self.rest, re.DOTALL)
        if match:
            self.rest = self.rest[match.end() :].lstrip(" ")
        return match

    def expression(self):
        if match := self.take(r"'((?:[^']|'')*)'"):
            return match[1].replace("''", "'")
        if match := self.take(r"\d+"):
            return int(match[0])
        name = self.take(r"[A-Za-z0-9]+")[0]
        assert self.take(r"\("), name
        arguments = []
        while not self.take(r"\)"):
            arguments.append(self.expression())
            self.take(",")
        value = self.call(name, arguments)
        # A call may be followed by names of members, such as `variables('a')[parameters('b')].c`.
        while True:
            if self.take(r"\["):
                value = value[self.expression()]
                assert self.take(r"\]"), self.rest
            elif member := self.take(r"\.([A-Za-z0-9]+)"):
                value = value[member[1]]
            else:
                return value

    def call(self, name, arguments):
        if name == "variables":
            rest = self.rest
            value = self.value(self.template["variables"][arguments[0]])
            self.rest = rest
            return value
        functions = {
            "parameters": lambda key: self.parameters[key],
            "concat": lambda *parts: "".join(parts),
            "string": str,
            "sub": lambda a, b: a - b,
            "less": lambda a, b: a < b,
            "lessOrEquals": lambda a, b: a <= b,
            "empty": lambda text: text == "",
            "if": lambda condition, yes, no: yes if condition else no,
            "newGuid": lambda: str(uuid.uuid4()),
            "replace": lambda text, old, new: text.replace(old, new),
            "base64": lambda text: base64.b64encode(text.encode()).decode(),
            "format": lambda text, *values: text.format(*values),
        }
        return functions[name](*arguments)

    def hosts(self):
        for resource in self.template["resources"]:
            properties = resource.get("properties", {})
            if not self.value(resource.get("condition", True)):
                continue
            if resource["type"] == "Microsoft.Compute/virtualMachines":
                number = self.value(resource.get("copy", {}).get("count", 1))
            elif resource["type"] == "Microsoft.Compute/virtualMachineScaleSets":
                assert properties["overprovision"] is False, "additional servers would register"
                number = self.value(resource["sku"]["capacity"])
                properties = properties["virtualMachineProfile"]
            else:
                continue
            if number > 0:
                self.check_disks(properties)
                yield self.value(properties["osProfile"]["customData"]), number

    def check_disks(self, properties):
        """Evaluates the number of data disks, which must not be negative."""
        for copy in properties["storageProfile"].get("copy", []):
            assert self.value(copy["count"]) >= 0, copy


class CloudInit:
    """A cloud-init file. Users write the settings of a host into it; here they are parameters."""

    def __init__(self, template, given):
        settings, script = template["write_files"]
        assert template["runcmd"] == [["sh", "-c", f". {settings['path']} && . {script['path']}"]]
        lines = []
        for line in settings["content"].splitlines():
            name, value = line.split("=", 1)
            lines.append(f"{name}='{given.pop(name)}'" if name in given else f"{name}={value}")
        assert not given, f"unknown settings: {given}"
        self.text = "\n".join(["#!/bin/sh", *lines, script["content"]])

    def hosts(self):
        yield base64.b64encode(self.text.encode()).decode(), 1


def main():
    path, address, *rest = sys.argv[1:]
    given = dict(pair.split("=", 1) for pair in rest)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".json"):
        words = {"true": True, "false": False}
        given = {n: int(it) if it.isdigit() else words.get(it, it) for n, it in given.items()}
        template = ResourceManager(json.loads(text), given)
    elif text.startswith("#cloud-config"):
        template = CloudInit(yaml.safe_load(text), given)
    else:
        template = CloudFormation(read_yaml(text), address, given)
    hosts = {}
    for data, number in template.hosts():
        text = base64.b64decode(data).decode()
        assert len(text) <= 16384, f"user data of {len(text)} bytes; AWS permits 16384"
        roles = re.search("^SKEP_ROLES='(.*)'$", text, re.MULTILINE)[1]
        before = hosts.get(roles, [text, 0])
        # The first metadata server formats the cluster.
        more = re.search("^SKEP_FORMAT=''$", text, re.MULTILINE) and before[0] != text
        name = f"more {roles}" if more else roles
        before = hosts.get(name, [text, 0])
        assert before[0] == text, f"hosts with the roles {name} have different user data"
        hosts[name] = [text, before[1] + number]
    json.dump(hosts, sys.stdout)


main()
