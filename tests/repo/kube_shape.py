"""The part of Kubernetes' published OpenAPI that our manifests use, written down as one table.

A type is a dict of fields ("name!" must be there), a list of one type, or a check of a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    return isinstance(value, str)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def whole_or_text(value: Any) -> bool:
    return whole(value) or text(value)


def name(value: Any) -> bool:
    """A DNS label, as names of objects, containers and volumes must be."""
    return text(value) and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value) is not None


def texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(text(k) and text(v) for k, v in value.items())


def quantities(value: Any) -> bool:
    amount = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
    return isinstance(value, dict) and all(
        text(v) and amount.fullmatch(v) is not None for v in value.values()
    )


def one_of(*words: str) -> Check:
    return lambda value: value in words


META = {"name!": name, "labels": texts_by_name, "annotations": texts_by_name}
LABELS = {"matchLabels": texts_by_name}
RESOURCES = {"requests": quantities, "limits": quantities}
PROBE = {
    "tcpSocket!": {"port!": whole_or_text},
    "periodSeconds": whole,
    "failureThreshold": whole,
    "timeoutSeconds": whole,
}
ENV = {
    "name!": text,
    "value": text,
    "valueFrom": {"fieldRef!": {"fieldPath!": text}},
}
CONTAINER = {
    "name!": name,
    "image!": text,
    "command": [text],
    "args": [text],
    "env": [ENV],
    "ports": [{"name": name, "containerPort!": whole}],
    "startupProbe": PROBE,
    "readinessProbe": PROBE,
    "resources": RESOURCES,
    "securityContext": {
        "allowPrivilegeEscalation": flag,
        "readOnlyRootFilesystem": flag,
        "capabilities": {"drop": [text], "add": [text]},
    },
    "volumeMounts": [{"name!": name, "mountPath!": text, "readOnly": flag}],
}
POD = {
    "containers!": [CONTAINER],
    "initContainers": [CONTAINER],
    "restartPolicy": one_of("Always", "OnFailure", "Never"),
    "securityContext": {"runAsNonRoot": flag, "runAsUser": whole, "fsGroup": whole},
    "subdomain": name,
    "terminationGracePeriodSeconds": whole,
    "topologySpreadConstraints": [
        {
            "maxSkew!": whole,
            "topologyKey!": text,
            "whenUnsatisfiable!": one_of("DoNotSchedule", "ScheduleAnyway"),
            "labelSelector": LABELS,
        }
    ],
    "volumes": [
        {
            "name!": name,
            "secret": {"secretName": name, "defaultMode": whole},
            "emptyDir": {"medium": one_of("", "Memory"), "sizeLimit": text},
        }
    ],
}
TEMPLATE = {"metadata": {k: v for k, v in META.items() if k != "name!"}, "spec!": POD}
CLAIM = {
    "metadata!": META,
    "spec!": {
        "accessModes!": [one_of("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany")],
        "resources!": RESOURCES,
        "storageClassName": text,
    },
}
SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("v1", "Service"): {
        "clusterIP": text,
        "publishNotReadyAddresses": flag,
        "selector": texts_by_name,
        "ports": [{"name": name, "port!": whole, "targetPort": whole_or_text}],
    },
    ("policy/v1", "PodDisruptionBudget"): {"maxUnavailable": whole_or_text, "selector": LABELS},
    ("apps/v1", "StatefulSet"): {
        "serviceName!": name,
        "replicas": whole,
        "podManagementPolicy": one_of("OrderedReady", "Parallel"),
        "selector!": LABELS,
        "template!": TEMPLATE,
        "volumeClaimTemplates": [CLAIM],
    },
    ("batch/v1", "Job"): {
        "completionMode": one_of("NonIndexed", "Indexed"),
        "completions": whole,
        "parallelism": whole,
        "backoffLimit": whole,
        "template!": TEMPLATE,
    },
}


def breaches(document: Any) -> list[str]:
    """Everything in an object that its type does not have, lacks, or has otherwise."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in SPECS:
        return [f"no such type: {kind}"]
    shape = {"apiVersion!": text, "kind!": text, "metadata!": META, "spec!": SPECS[kind]}
    return list(_breaches(document, shape, kind[1]))


def _breaches(value: Any, shape: Any, path: str) -> Iterator[str]:
    if callable(shape):
        if not shape(value):
            yield f"{path} is {value!r}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{path} is no list"
            return
        for i, one in enumerate(value):
            yield from _breaches(one, shape[0], f"{path}[{i}]")
    elif not isinstance(value, dict):
        yield f"{path} is no object"
    else:
        fields = {field.rstrip("!"): inner for field, inner in shape.items()}
        needed = {field[:-1] for field in shape if field.endswith("!")}
        for field in sorted(needed - set(value)):
            yield f"{path} lacks {field}"
        for field, inner in value.items():
            if field not in fields:
                yield f"{path} has no field {field}"
            else:
                yield from _breaches(inner, fields[field], f"{path}.{field}")
