"""Ray's autoscaler on this machine: real raylets come and go as a job asks for them.

Ray's wheel has the provider that starts raylets. ``ray.cluster_utils.AutoscalingCluster`` needs a file that
the wheel lacks, and runs ``ray stop --force``, which ends other clusters, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dray.ports import lasting_port

HEAD_ID = "f" * 51 + "00000"
"""Of the head, as Ray's provider expects it; its nodes have the same with another number."""

VARIABLES = {
    "RAY_FAKE_CLUSTER": "1",  # the provider wants it
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def head_arguments(folder: Path, *, most: int, cpus: int, gpus: int, idle_seconds: float) -> dict[str, Any]:
    """What a head is started with whose autoscaler may start so many nodes of this size.

    A node that is idle for ``idle_seconds`` is ended.
    """
    port = lasting_port()
    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    config = {
        "cluster_name": "tests",
        "max_workers": most,
        "idle_timeout_minutes": idle_seconds / 60,
        "upscaling_speed": 10.0,
        "provider": {
            "type": "external",  # the name of its own wants a file that the wheel lacks
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": f"{_address()}:{port}",
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{name: [] for name in _COMMANDS},
    }
    path = folder / "autoscaler.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return {
        "autoscaling_config": str(path),
        "gcs_server_port": port,
        "environment": {
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_NODE_TYPE_NAME": "ray.head.default",
        },
    }


_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


def _address() -> str:
    from ray._private.services import get_node_ip_address

    return str(get_node_ip_address())
