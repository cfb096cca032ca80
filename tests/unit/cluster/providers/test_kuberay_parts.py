"""What dray sends to Kubernetes, judged by KubeRay's own schema, and how many workers it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dray.cluster.cluster_file import read_cluster_file
from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.objects import ELASTIC, EXPIRES, PLURAL, ray_cluster
from dray.cluster.providers.kuberay.pods import QUEUED, Pod, is_queued, pods_of
from dray.cluster.providers.kuberay.sizing import Sizes, Wish, first_sizes, sizes
from dray.cluster.providers.protocol import Market, Phase
from dray.errors import ConfigError
from tests.support.kube_schema import wrong

pytestmark = pytest.mark.unit

DEPLOYMENTS = Path(__file__).parents[4] / "deployments/kubernetes"
BOTH = frozenset({Market.SPOT, Market.ON_DEMAND})


def settings(**changes: Any) -> KubeRayCluster:
    return KubeRayCluster(**{"image": "registry.example/dray:1", **changes})


QUANTITIES = st.integers(1, 999).map(lambda number: f"{number}Gi")
LABELS = st.dictionaries(
    st.sampled_from(["karpenter.sh/capacity-type", "cloud.google.com/gke-spot", "pool"]),
    st.sampled_from(["spot", "true", "a-b.c_d", ""]),
)


@given(
    workers=st.integers(0, 1000),
    gpus=st.integers(0, 8),
    cpus=st.floats(0.1, 256),
    memory=QUANTITIES,
    shared_memory=QUANTITIES,
    markets=st.sampled_from([(True, True), (True, False), (False, True)]),
    spot_selector=LABELS,
    on_demand_selector=LABELS,
    tolerations=st.lists(st.sampled_from(["nvidia.com/gpu", "spot"]), unique=True).map(tuple),
    queue=st.none() | st.just("batch"),
    instance_type=st.none() | st.just("g6e.12xlarge"),
    image_pull_secrets=st.just(()) | st.just(("pull",)),
    env_secrets=st.just(()) | st.just(("dray-env", "more.env")),
    expires=st.floats(0, 1e11),
)
def test_every_cluster_is_one_that_kuberay_takes(
    markets: tuple[bool, bool], expires: float, **values: Any
) -> None:
    given_ = settings(minimum=0, spot=markets[0], on_demand=markets[1], **values)
    wish = Wish(workers=given_.workers, markets=given_.markets)
    cluster = ray_cluster(given_, first_sizes(wish), expires)
    assert wrong(json.loads(json.dumps(cluster))) == []
    groups = cluster["spec"]["workerGroupSpecs"]
    assert sum(one["replicas"] for one in groups) == given_.workers
    for one in (*groups, cluster["spec"]["headGroupSpec"]):  # rules of KubeRay's validation.go
        assert not ("labels" in one["rayStartParams"] or "resources" in one)
        assert one["template"]["spec"]["containers"][0]["name"].startswith("ray-")
    assert all(one["minReplicas"] <= one["replicas"] <= one["maxReplicas"] for one in groups)


def test_the_judge_finds_what_is_wrong() -> None:
    cluster = ray_cluster(settings(), {"spot": 1}, 1.0)
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = "1"
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    del cluster["spec"]["workerGroupSpecs"][1]["template"]
    found = wrong(cluster)
    assert any("replicas: str instead of integer" in one for one in found)
    assert any("imagee: unknown field" in one for one in found)
    assert any("template: missing" in one for one in found)


def test_a_person_finds_what_matters() -> None:
    cluster = ray_cluster(settings(gpus=2, instance_type="g6e.12xlarge"), {"spot": 3}, 1234.9)
    spec = cluster["spec"]
    assert cluster["metadata"]["annotations"] == {EXPIRES: "1234"}
    assert spec["authOptions"] == {"mode": "token"}
    head, (spot, dear) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"  # no engine lands there
    assert json.loads(json.loads(head["rayStartParams"]["resources"])) == {"dray_stable": 1}
    assert head["template"]["spec"]["nodeSelector"] == dear["template"]["spec"]["nodeSelector"]
    assert (spot["replicas"], dear["replicas"]) == (3, 0)
    assert spot["labels"] == {"ray.io/market-type": "spot", "dray/instance-type": "g6e.12xlarge"}
    pod = spot["template"]["spec"]
    assert pod["volumes"] == [{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "secret" not in json.dumps(cluster).lower()


def test_kueue_is_told_that_a_cluster_in_its_queue_changes_its_size() -> None:
    """Without the annotation it suspends the cluster at the first change."""
    queued = ray_cluster(settings(queue="batch"), {"spot": 1}, 1234.9)["metadata"]
    assert queued["annotations"] == {EXPIRES: "1234", ELASTIC: "true"}
    assert ELASTIC not in ray_cluster(settings(), {"spot": 1}, 1234.9)["metadata"]["annotations"]


def test_a_pod_that_kueue_has_not_admitted_is_no_machine() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
    labels = {"ray.io/cluster": "c", "ray.io/node-type": "worker", "ray.io/group": "spot"}
    status = {"phase": "Pending", "conditions": [gated]}
    [found] = pods_of([{"metadata": {"name": "w", "labels": labels}, "status": status}])
    assert (found.gated, found.there, found.waits, found.why) == (True, False, None, QUEUED)
    wish = Wish(workers=1, markets=BOTH, spot_seconds=0)
    assert fit(wish, 1, 0, found) == (1, 0, ())  # no node lacks: on demand would wait as well
    assert fit(wish, 2, 0, pod("a", "spot"), found) == (1, 0, ("w",))
    assert is_queued({"spec": {"suspend": True}})
    assert not is_queued({"spec": {"suspend": False}})
    assert not is_queued({"spec": {}})


def test_head_and_workers_get_the_keys_of_secrets_as_variables() -> None:
    spec = ray_cluster(settings(env_secrets=("dray-env", "more")), {"spot": 1}, 1.0)["spec"]
    given_ = [{"secretRef": {"name": "dray-env"}}, {"secretRef": {"name": "more"}}]
    for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        ray, *others = one["template"]["spec"]["containers"]
        assert ray["envFrom"] == given_
        assert all("envFrom" not in other for other in others)  # the expiry needs none
    plain = ray_cluster(settings(), {"spot": 1}, 1.0)["spec"]["headGroupSpec"]
    assert "envFrom" not in plain["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "Dray"}, "name 'Dray' must be"),
        ({"name": "x" * 31}, "must be 1 to 30"),
        ({"image": "a b"}, "image has 'a b'"),
        ({"memory": "32"}, "memory has '32'"),
        ({"gpus": -1}, "gpus is -1, but must be from 0 to 64"),
        ({"minimum": 2}, "minimum is 2, and only 1 workers are wanted"),
        ({"spot": False, "on_demand": False}, "neither spot nor on_demand"),
        ({"spot_selector": {"a b": "c"}}, "spot_selector has 'a b'"),
        ({"env_secrets": ("dray-env", "Dray_Env")}, "env_secrets: number 2 is no name"),
        ({"image_pull_secrets": ("-",)}, "image_pull_secrets has '-'"),
        ({"tolerations": ("a b",)}, "tolerations has 'a b'"),
        ({"grace_seconds": 5}, "grace_seconds is 5"),
        ({"namespace": "A"}, "namespace has 'A'"),
    ],
)
def test_settings_that_cannot_be_name_their_field(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^kuberay: .*{told}"):
        settings(**changes)


def test_a_secret_in_place_of_its_name_is_not_shown() -> None:
    with pytest.raises(ConfigError) as told:
        settings(env_secrets=("HF_TOKEN=hidden-word",))
    assert "hidden-word" not in str(told.value)


def test_a_job_has_a_cluster_of_its_own() -> None:
    provider = settings(name="d" * 30).open("a1b2c3d4")
    assert provider.where == "the RayCluster " + "d" * 21 + "-a1b2c3d4 in the namespace default"
    [planned] = provider.plan()
    assert wrong(json.loads(json.dumps(planned.body))) == []


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ("on_demand_selector = {}", {}),  # GKE has no label of nodes on demand
        ("[on_demand_selector]", {}),
        (
            'on_demand_selector = { "eks.amazonaws.com/capacityType" = "ON_DEMAND" }',
            {"eks.amazonaws.com/capacityType": "ON_DEMAND"},
        ),
    ],
)
def test_nodes_on_demand_of_other_clouds(line: str, labels: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'kind = "kuberay"\nimage = "dray:1"\n{line}\n')
    found = read_cluster_file(str(file)).provider
    assert isinstance(found, KubeRayCluster)
    cluster = ray_cluster(found, {"spot": 1}, 1.0)
    assert wrong(json.loads(json.dumps(cluster))) == []
    _, dear = cluster["spec"]["workerGroupSpecs"]
    for one in (cluster["spec"]["headGroupSpec"], dear):
        assert one["template"]["spec"]["nodeSelector"] == labels


def test_the_example_file_and_its_permissions() -> None:
    found = read_cluster_file(str(DEPLOYMENTS / "cluster.toml")).provider
    assert isinstance(found, KubeRayCluster)
    documents = list(yaml.safe_load_all((DEPLOYMENTS / "rbac.yaml").read_text()))
    roles = {one["metadata"]["name"]: one["rules"] for one in documents if one["kind"] == "Role"}
    of_pods = [rule for rule in roles["dray-pods"] if PLURAL in rule["resources"]]
    assert of_pods == [{"apiGroups": ["ray.io"], "resources": [PLURAL], "verbs": ["get", "delete"]}]
    [of_nodes] = [one for one in documents if one["kind"] == "ClusterRole"]  # taints announce a node's end
    assert of_nodes["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    [bound] = [one for one in documents if one["kind"] == "ClusterRoleBinding"]
    assert bound["subjects"][0]["name"] == found.service_account
    assert {found.service_account} == {
        one["metadata"]["name"] for one in documents if one["kind"] == "ServiceAccount"
    }


def pod(name: str, group: str, *, waits: float | None = None, leaving: bool = False) -> Pod:
    return Pod(
        name=name, head=False, group=group, phase="Running" if waits is None else "Pending",
        leaving=leaving, ready=waits is None, address="", node="", waits=waits,
    )  # fmt: skip


def fit(wish: Wish, spot: int, dear: int, *pods: Pod) -> tuple[int, int, tuple[str, ...]]:
    """At the second 1000."""
    found: Sizes = sizes(wish, {"spot": spot, "on-demand": dear}, pods, 1000.0)
    gone = (*found.leaving["spot"], *found.leaving["on-demand"])
    return found.replicas["spot"], found.replicas["on-demand"], gone


def test_more_workers_come_on_spot() -> None:
    assert fit(Wish(workers=4, markets=BOTH), 1, 1) == (3, 1, ())


def test_fewer_workers_lose_what_waits_then_what_is_dear() -> None:
    pods = [pod("s1", "spot"), pod("s2", "spot", waits=990), pod("d1", "on-demand"), pod("s3", "spot")]
    wish = Wish(workers=3, markets=BOTH)
    assert fit(wish, 3, 1, *pods) == (2, 1, ("s2",))
    assert fit(Wish(workers=2, markets=BOTH), 3, 1, *pods) == (2, 0, ("s2", "d1"))
    assert fit(Wish(workers=1, markets=BOTH), 3, 1, *pods) == (1, 0, ("s2", "s3", "d1"))
    assert fit(Wish(workers=0, markets=BOTH), 2, 0) == (0, 0, ())  # no pod is there yet


def test_a_pod_that_is_evicted_goes_first_and_is_named() -> None:
    """KubeRay counts it as running unless it is named, and would delete a healthy one in its place."""
    pods = [pod("a", "spot"), pod("b", "spot"), pod("c", "spot", leaving=True)]
    assert fit(Wish(workers=2, markets=BOTH), 3, 0, *pods) == (2, 0, ("c",))
    assert fit(Wish(workers=3, markets=BOTH), 3, 0, *pods) == (3, 0, ())  # KubeRay replaces it


@pytest.mark.parametrize(
    ("on_demand", "waited", "found"),
    [
        (None, 119, (3, 0, ())),
        (None, 121, (1, 2, ("s2", "s3"))),
        (0, 121, (3, 0, ())),
        (1, 121, (2, 1, ("s2",))),
        (5, 121, (1, 2, ("s2", "s3"))),
    ],
)
def test_what_waits_for_spot_too_long_comes_on_demand_if_it_may(
    on_demand: int | None, waited: float, found: tuple[int, int, tuple[str, ...]]
) -> None:
    waiting = [pod(name, "spot", waits=1000 - waited) for name in ("s2", "s3")]
    going = pod("s0", "spot", waits=1.0, leaving=True)
    wish = Wish(workers=3, markets=BOTH, on_demand=on_demand)
    assert fit(wish, 3, 0, going, pod("s1", "spot"), *waiting) == found


@given(
    st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.none() | st.integers(0, 6),
    st.lists(st.tuples(st.sampled_from(["spot", "on-demand"]), st.none() | st.floats(0, 1000)), max_size=8),
)  # fmt: skip
def test_there_are_always_as_many_as_are_wished_for(
    workers: int, spot: int, dear: int, on_demand: int | None, drawn: list[tuple[str, float | None]]
) -> None:
    pods = [pod(f"p{number}", group, waits=waits) for number, (group, waits) in enumerate(drawn)]
    wish = Wish(workers=workers, markets=BOTH, on_demand=on_demand)
    new_spot, new_dear, gone = fit(wish, spot, dear, *pods)
    assert new_spot + new_dear == workers
    assert min(new_spot, new_dear) >= 0
    assert len(set(gone)) == len(gone)
    if on_demand is not None:
        assert new_dear <= max(on_demand, dear)


def test_pods_are_machines() -> None:
    labels = {"ray.io/cluster": "c", "ray.io/node-type": "worker", "ray.io/group": "spot"}
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    scheduled |= {"message": "0/3 nodes\n are available", "lastTransitionTime": "2026-11-25T06:00:00Z"}
    ready = {"type": "Ready", "status": "True"}
    head_labels = {**labels, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
    running = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}
    items: list[dict[str, Any]] = [
        {
            "metadata": {"name": "w", "labels": labels},
            "status": {"phase": "Pending", "conditions": [scheduled]},
        },
        {"metadata": {"name": "old", "labels": labels}, "status": {"phase": "Failed"}},
        {"metadata": {"name": "new", "labels": labels}},
        {"metadata": {"name": "h", "labels": head_labels}, "status": running},
    ]
    head, new, waits = pods_of(items)
    assert (head.name, head.market, head.ready, head.there) == ("h", Market.ON_DEMAND, True, True)
    assert (new.phase, new.there, new.machine("k", 1, None).phase) == ("Pending", True, Phase.COMING)
    assert (waits.there, waits.waits, waits.why) == (False, 1795586400.0, "0/3 nodes are available")
