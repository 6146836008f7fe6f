"""Schemas of custom resources: the fields that `deploy/kubernetes` uses, and no others.

After the definitions of Prometheus Operator 0.93, JobSet 0.12, Kubeflow Trainer 2.3 and training
operator 1.9, MPI operator 0.8 and KubeRay 1.7. Pods are left to the schema of Kubernetes.
"""

from __future__ import annotations

from typing import Any


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = required | (optional or {})
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXT, COUNT, ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
DURATION = {"type": "string", "pattern": r"^(0|(\d+h)?(\d+m)?(\d+s)?(\d+ms)?)$"}
_ALERT = _object(
    {"alert": TEXT, "expr": TEXT, "annotations": TEXTS},
    {"for": DURATION, "keep_firing_for": DURATION, "labels": TEXTS},
)
_RULE = {"oneOf": [_ALERT, _object({"record": TEXT, "expr": TEXT})]}
_ENDPOINT = _object(
    {"port": TEXT},
    {
        "interval": DURATION,
        "authorization": _object({"credentials": _object({"name": TEXT, "key": TEXT})}),
        "relabelings": _list(_object({"action": TEXT, "targetLabel": TEXT, "replacement": TEXT})),
    },
)
_JOB = _object(
    {"template": ANY},
    {
        "parallelism": COUNT,
        "completions": COUNT,
        "completionMode": {"enum": ["Indexed"]},
        "backoffLimit": COUNT,
    },
)
_JOBS = _list(
    _object(
        {"name": TEXT, "template": _object({"spec": _JOB}, {"metadata": ANY})},
        {"replicas": COUNT},
    )
)
_REPLICA = _object({"replicas": COUNT, "template": ANY}, {"restartPolicy": TEXT})
_RAY_GROUP = {"rayStartParams": TEXTS, "template": ANY}

SPECS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        {"selector": ANY, "podMetricsEndpoints": _list(_ENDPOINT)}
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        {"selector": ANY, "endpoints": _list(_ENDPOINT)}
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        {"groups": _list(_object({"name": TEXT, "rules": _list(_RULE)}))}
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _object(
        {"replicatedJobs": _JOBS}, {"failurePolicy": _object({"maxRestarts": COUNT})}
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): _object(
        {
            "mlPolicy": _object({"numNodes": COUNT, "torch": ANY}),
            "template": _object({"spec": _object({"replicatedJobs": _JOBS})}),
        }
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): _object(
        {
            "runtimeRef": _object({"apiGroup": TEXT, "kind": TEXT, "name": TEXT}),
            "trainer": _object(
                {
                    "numNodes": COUNT,
                    "image": TEXT,
                    "command": _list(TEXT),
                    "resourcesPerNode": _object({"limits": ANY}),
                }
            ),
        }
    ),
    ("kubeflow.org/v1", "PyTorchJob"): _object(
        {
            "nprocPerNode": TEXT,
            "runPolicy": _object({"backoffLimit": COUNT}),
            "pytorchReplicaSpecs": _object({"Master": _REPLICA, "Worker": _REPLICA}),
        }
    ),
    ("kubeflow.org/v2beta1", "MPIJob"): _object(
        {
            "slotsPerWorker": COUNT,
            "runPolicy": _object({"cleanPodPolicy": TEXT, "backoffLimit": COUNT}),
            "sshAuthMountPath": TEXT,
            "mpiReplicaSpecs": _object({"Launcher": _REPLICA, "Worker": _REPLICA}),
        }
    ),
    ("ray.io/v1", "RayCluster"): _object(
        {
            "headGroupSpec": _object(_RAY_GROUP),
            "workerGroupSpecs": _list(
                _object(
                    _RAY_GROUP
                    | {
                        "groupName": TEXT,
                        "replicas": COUNT,
                        "minReplicas": COUNT,
                        "maxReplicas": COUNT,
                    }
                )
            ),
        }
    ),
}
"""Schema of the spec of each custom resource, by its version and kind."""
