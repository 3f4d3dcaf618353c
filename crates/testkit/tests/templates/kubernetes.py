"""Checks the manifests in deploy/kubernetes, and prints as JSON what a node runs for their pods.

The tables have the fields of the API of Kubernetes, versions v1 and apps/v1, that the manifests
use, from https://kubernetes.io/docs/reference/kubernetes-api/. Any other field is an error, as it
is for `kubectl apply`.

Usage: kubernetes.py DIRECTORY
"""

import json
import pathlib
import re
import sys

import yaml

LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABELS = {str: str}
META = {"name": LABEL, "namespace": LABEL, "labels": LABELS}
QUANTITY = re.compile("[0-9]+(m|[KMGTP]i)?")
PATH = re.compile("/[^:]+")
SECURITY = {
    "privileged": bool,
    "runAsUser": int,
    "allowPrivilegeEscalation": bool,
    "capabilities": {"drop": [str]},
}
CONTAINER = {
    "name": LABEL,
    "image": str,
    "command": [str],
    "args": [str],
    "securityContext": SECURITY,
    "readinessProbe": {"exec": {"command": [str]}, "periodSeconds": int},
    "resources": {"requests": {"cpu": QUANTITY, "memory": QUANTITY}},
    "volumeMounts": [
        {
            "name": LABEL,
            "mountPath": PATH,
            "mountPropagation": re.compile("None|HostToContainer|Bidirectional"),
            "readOnly": bool,
        }
    ],
}
HOST_PATH = {"path": PATH, "type": re.compile("Directory|DirectoryOrCreate")}
POD = {
    "hostNetwork": bool,
    "hostPID": bool,
    "dnsPolicy": re.compile("ClusterFirst|ClusterFirstWithHostNet|Default|None"),
    "automountServiceAccountToken": bool,
    "priorityClassName": str,
    "restartPolicy": re.compile("Always|OnFailure|Never"),
    "terminationGracePeriodSeconds": int,
    "tolerations": [{"operator": re.compile("Exists|Equal")}],
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "seccompProfile": {"type": re.compile("RuntimeDefault|Unconfined")},
    },
    "initContainers": [CONTAINER],
    "containers": [CONTAINER],
    "volumes": [
        {
            "name": LABEL,
            "hostPath": HOST_PATH,
            "secret": {"secretName": LABEL, "defaultMode": int},
            "persistentVolumeClaim": {"claimName": LABEL},
        }
    ],
}
ACCESS = [re.compile("ReadWriteOnce|ReadOnlyMany|ReadWriteMany|ReadWriteOncePod")]
CLAIM = {
    "accessModes": ACCESS,
    "storageClassName": str,
    "volumeName": LABEL,
    "resources": {"requests": {"storage": QUANTITY}},
}
VOLUME = {
    "capacity": {"storage": QUANTITY},
    "accessModes": ACCESS,
    "persistentVolumeReclaimPolicy": re.compile("Retain"),
    "storageClassName": str,
    "claimRef": {"namespace": LABEL, "name": LABEL},
    "hostPath": HOST_PATH,
}
DAEMON_SET = {
    "selector": {"matchLabels": LABELS},
    "updateStrategy": {"type": re.compile("OnDelete|RollingUpdate")},
    "template": {"metadata": META, "spec": POD},
}
SELECTED = {"scopeName": re.compile("PriorityClass"), "operator": str, "values": [str]}
QUOTA = {"hard": {"pods": QUANTITY}, "scopeSelector": {"matchExpressions": [SELECTED]}}
# The version of the API and the fields of each kind.
KINDS = {
    "Namespace": ("v1", {}),
    "ResourceQuota": ("v1", {"spec": QUOTA}),
    "Secret": ("v1", {"type": re.compile("Opaque"), "stringData": LABELS}),
    "DaemonSet": ("apps/v1", {"spec": DAEMON_SET}),
    "PersistentVolume": ("v1", {"spec": VOLUME}),
    "PersistentVolumeClaim": ("v1", {"spec": CLAIM}),
    "Pod": ("v1", {"spec": POD}),
}


def check(value, form, place):
    """Checks that a value has a form: a type, a pattern, a list of one form, or an object."""
    if isinstance(form, re.Pattern):
        good = isinstance(value, str) and form.fullmatch(value)
    elif isinstance(form, list):
        good = isinstance(value, list)
        for index, item in enumerate(value if good else []):
            check(item, form[0], f"{place}[{index}]")
    elif isinstance(form, dict):
        good = isinstance(value, dict)
        for name, item in (value if good else {}).items():
            known = form.get(name, form.get(str))
            assert known, f"{place}.{name}: unknown field"
            check(item, known, f"{place}.{name}")
    else:
        # In Python, `bool` is a subclass of `int`, so compare the exact types.
        good = type(value) is form
    assert good, f"{place}: unexpected {value!r}"


def read(directory):
    """Returns all objects of the manifests: {kind: object}."""
    objects = {}
    for file in sorted(pathlib.Path(directory).glob("*.yaml")):
        for value in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            kind = value["kind"]
            version, fields = KINDS[kind]
            assert value["apiVersion"] == version, f"{kind}: {value['apiVersion']}"
            assert kind not in objects, f"two objects of the kind {kind}"
            check(value, {"apiVersion": str, "kind": str, "metadata": META, **fields}, kind)
            objects[kind] = value
    assert set(objects) == set(KINDS), f"missing: {set(KINDS) - set(objects)}"
    return objects


def name(value):
    """Returns the namespace and the name of an object."""
    return value["metadata"].get("namespace"), value["metadata"]["name"]


def check_references(objects):
    """Checks that the objects name each other, and have the rights that Kubernetes demands."""
    daemon, claim = objects["DaemonSet"], objects["PersistentVolumeClaim"]
    labels = daemon["spec"]["selector"]["matchLabels"]
    assert labels == daemon["spec"]["template"]["metadata"]["labels"], "labels of the DaemonSet"
    space = objects["Namespace"]
    for kind in ["DaemonSet", "ResourceQuota", "Secret"]:
        assert objects[kind]["metadata"]["namespace"] == space["metadata"]["name"], kind
    selected = objects["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"][0]
    assert selected["values"] == [daemon["spec"]["template"]["spec"]["priorityClassName"]]
    assert space["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    volume = objects["PersistentVolume"]["spec"]
    assert (volume["claimRef"]["namespace"], volume["claimRef"]["name"]) == name(claim)
    assert claim["spec"]["volumeName"] == name(objects["PersistentVolume"])[1]
    # Kubernetes binds a claim to a volume only if these fields are equal.
    for field in ["accessModes", "storageClassName"]:
        assert claim["spec"][field] == volume[field], field
    assert claim["spec"]["resources"]["requests"] == volume["capacity"], "sizes"
    assert objects["Pod"]["metadata"]["namespace"] == claim["metadata"]["namespace"]


def container(pod, value, objects):
    """Returns what a node must do for a container."""
    sources = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = []
    for mount in value["volumeMounts"]:
        source = sources[mount["name"]]
        mode = mount.get("mountPropagation", "None")
        privileged = value["securityContext"].get("privileged", False)
        assert mode != "Bidirectional" or privileged, "only privileged containers may do this"
        secret, host = source.get("secret"), source.get("hostPath")
        if claim := source.get("persistentVolumeClaim"):
            assert claim["claimName"] == name(objects["PersistentVolumeClaim"])[1]
            host = objects["PersistentVolume"]["spec"]["hostPath"]
        if secret:
            assert secret["secretName"] == name(objects["Secret"])[1]
            files, secret = list(objects["Secret"]["stringData"]), secret["defaultMode"]
            assert files == ["token"], files
        mounts.append(
            {
                "path": mount["mountPath"],
                "host": host and host["path"],
                "secret": secret,
                "propagation": mode,
            }
        )
    user = pod.get("securityContext", {}).get("runAsUser", 0)
    probe = value.get("readinessProbe", {}).get("exec", {}).get("command", [])
    return {
        "words": value["command"] + value["args"],
        "user": value["securityContext"].get("runAsUser", user),
        "probe": probe,
        "mounts": mounts,
    }


def main():
    objects = read(sys.argv[1])
    check_references(objects)
    daemon = objects["DaemonSet"]["spec"]["template"]["spec"]
    # The mount reads /proc of its callers, and its connections must not pass a network of pods.
    assert daemon["hostPID"] and daemon["hostNetwork"]
    pod = objects["Pod"]["spec"]
    found = {
        "mount": container(daemon, daemon["containers"][0], objects),
        "grace": daemon["terminationGracePeriodSeconds"],
        "init": container(pod, pod["initContainers"][0], objects),
        "program": container(pod, pod["containers"][0], objects),
    }
    json.dump(found, sys.stdout)


main()
