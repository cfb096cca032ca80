"""Blocks: Prefect's own standard, settings that come back as they went in, secrets that stay inside."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites.blocks import BlockStandardTestSuite
from pydantic import SecretStr

import blocks
from blocks import (
    EC2RayCluster,
    ExistingRayCluster,
    KubeRayCluster,
    LocalRayCluster,
    ModelSource,
    ObjectStoreCredentials,
    ResultStore,
)
from dray.cluster import ClusterSettings
from dray.cluster.providers import ec2, kuberay
from dray.cluster.providers.checking import Bounds
from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.kuberay import KubeRayCluster as KubeRaySettings
from dray.errors import ConfigError
from dray.storage import ObjectStoreOptions
from flows.resolving import PrefectBlocks

pytestmark = pytest.mark.unit

SECRET = "canary-51c8-secret"
HIDDEN = SecretStr(SECRET)
BLOCKS = [getattr(blocks, name) for name in blocks.__all__]


@pytest.mark.parametrize("block", BLOCKS)
class TestBlocks(BlockStandardTestSuite):
    """What Prefect asks of every block of its own collections."""

    test_has_a_valid_image = None  # type: ignore[assignment]  # it fetches a logo from the network, and ours have none

    @pytest.fixture
    def block(self, block: type[Block]) -> type[Block]:
        return block

    def test_slug_and_name_say_whose_it_is(self, block: type[Block]) -> None:
        assert block._block_type_slug is not None
        assert block._block_type_slug.startswith("dray-")
        assert str(block._block_type_name).startswith("dray ")


def test_slugs_never_change() -> None:
    # The slug is the key under which people's saved blocks lie: another one orphans them.
    assert {block.__name__: block._block_type_slug for block in BLOCKS} == {
        "EC2RayCluster": "dray-ec2-ray-cluster",
        "ExistingRayCluster": "dray-existing-ray-cluster",
        "KubeRayCluster": "dray-kuberay-cluster",
        "LocalRayCluster": "dray-local-ray-cluster",
        "ModelSource": "dray-model-source",
        "ObjectStoreCredentials": "dray-object-store-credentials",
        "ResultStore": "dray-result-store",
    }


text = st.text(min_size=1, max_size=20).filter(lambda value: value == value.strip())
maybe_text = st.none() | text


@given(
    endpoint=maybe_text,
    region=maybe_text,
    access_key_id=maybe_text,
    secret_access_key=maybe_text,
    allow_http=st.booleans(),
)
def test_object_store_settings_come_back(**given_: Any) -> None:
    assert ObjectStoreCredentials(**given_).settings() == ObjectStoreOptions(**given_)


@given(num_cpus=st.none() | st.floats(0.5, 512), num_gpus=st.none() | st.floats(0, 64))
def test_local_cluster_settings_come_back(num_cpus: float | None, num_gpus: float | None) -> None:
    settings = LocalRayCluster(num_cpus=num_cpus, num_gpus=num_gpus).settings()
    assert settings == ClusterSettings(address=None, num_cpus=num_cpus, num_gpus=num_gpus)


PLACE: dict[str, Any] = {
    "region": "us-east-1",
    "security_group": "sg-00000001",
    "instance_profile": "dray-node-us-east-1",
    "image": "ami-00000001",
}


def test_settings_of_a_rented_cluster_come_back() -> None:
    """Each field of its settings is one of the block, with the same default."""
    plain = EC2Cluster(**PLACE, subnets=("subnet-00000001",))
    block = EC2RayCluster(**PLACE, subnets=["subnet-00000001"])
    assert block.settings() == ClusterSettings(provider=plain)
    names = {one.name for one in fields(EC2Cluster)}
    assert names == {name for name in EC2RayCluster.model_fields if not name.startswith("_")}
    keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": HIDDEN}
    settings = EC2RayCluster(**PLACE, subnets=["subnet-00000001"], **keys).settings()
    assert isinstance(settings.provider, EC2Cluster)
    assert settings.provider.secret_access_key == SECRET
    assert SECRET not in repr(settings)


def test_settings_of_a_cluster_in_kubernetes_come_back() -> None:
    plain = KubeRaySettings(image="dray:1")
    assert KubeRayCluster(image="dray:1").settings() == ClusterSettings(provider=plain)
    names = {one.name for one in fields(KubeRaySettings)}
    assert names == {name for name in KubeRayCluster.model_fields if not name.startswith("_")}
    changed = KubeRayCluster(image="dray:1", tolerations=["spot"], spot_selector={"pool": "spot"}).settings()
    assert isinstance(changed.provider, KubeRaySettings)
    assert (changed.provider.tolerations, changed.provider.spot_selector) == (("spot",), {"pool": "spot"})
    anywhere = KubeRayCluster(image="dray:1", on_demand_selector={}).settings()
    assert anywhere == ClusterSettings(provider=KubeRaySettings(image="dray:1", on_demand_selector={}))
    secrets = KubeRayCluster(image="dray:1", env_secrets=["dray-env"]).settings()
    assert secrets == ClusterSettings(provider=KubeRaySettings(image="dray:1", env_secrets=("dray-env",)))


@pytest.mark.parametrize(
    ("block", "bounds"), [(EC2RayCluster, ec2.settings.BOUNDS), (KubeRayCluster, kuberay.settings.BOUNDS)]
)
def test_prefects_page_refuses_what_a_job_would_refuse(block: type[Block], bounds: Bounds) -> None:
    """The page goes by the schema: a block that it saves is one that opens."""
    numbers = {
        name: (one["minimum"], one["maximum"])
        for name, one in block.model_json_schema()["properties"].items()
        if one.get("type") in ("integer", "number")
    }
    assert numbers == bounds


def test_a_block_of_another_type_is_no_cluster() -> None:
    with pytest.raises(ConfigError, match=r"no block of the type 'x' is a cluster; those are dray-ec2-ray-"):
        PrefectBlocks().cluster("x/mine")


@given(address=text, auth_token=maybe_text)
def test_existing_cluster_settings_come_back(address: str, auth_token: str | None) -> None:
    saved = {"address": address, "auth_token": auth_token}
    settings = ExistingRayCluster.model_validate(saved).settings()
    assert settings == ClusterSettings(address=address, auth_token=auth_token)


@given(uri=text, endpoint=maybe_text)
def test_model_source_settings_come_back(uri: str, endpoint: str | None) -> None:
    credentials = ObjectStoreCredentials(endpoint=endpoint)
    place = ModelSource(uri=uri, credentials=credentials).settings()
    assert (place.uri, place.objects) == (uri, credentials.settings())
    assert ModelSource(uri=uri).settings().objects is None


@pytest.mark.parametrize(("bundles", "warnings"), [("s3://b/caches", 1), (None, 0)])
def test_a_block_of_an_earlier_version_is_read(
    bundles: str | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Prefect hands a saved document's fields to the class; each one had ``bundles``, if only as null."""
    saved = {"uri": "s3://b/m", "credentials": None, "bundles": bundles}
    with caplog.at_level(logging.WARNING, logger="prefect"):
        assert ModelSource.model_validate(saved).settings().uri == "s3://b/m"
    assert [record.getMessage().count("VLLM_CACHE_ROOT") for record in caplog.records] == [1] * warnings


@given(url=text)
def test_store_url_comes_back(url: str) -> None:
    assert ResultStore.model_validate({"url": url}).settings() == url


@pytest.mark.parametrize(
    ("block", "values"),
    [
        (ResultStore, {"url": "postgresql://dray:secret@db/dray"}),
        (ExistingRayCluster, {"address": "10.0.0.5:6379", "auth_token": "token"}),
        (ObjectStoreCredentials, {"region": "us-east-1", "access_key_id": "id", "secret_access_key": "key"}),
        (ModelSource, {"uri": "s3://b/m"}),
        (EC2RayCluster, {**PLACE, "subnets": ["subnet-00000001"]}),
        (KubeRayCluster, {"image": "dray:1", "tolerations": ["spot"]}),
    ],
)
def test_blanks_around_what_is_pasted_go(block: type[Any], values: dict[str, Any]) -> None:
    """They are saved with the block, and went into addresses and keys, where each of them failed late."""
    pasted = {
        name: [f" {one}\n" for one in value] if isinstance(value, list) else f" {value}\n"
        for name, value in values.items()
    }
    assert block.model_validate(pasted).settings() == block.model_validate(values).settings()


Secretive = ResultStore | ExistingRayCluster | ObjectStoreCredentials | ModelSource
SECRETIVE: list[Secretive] = [
    ResultStore(url=SecretStr(f"postgresql://dray:{SECRET}@db/dray")),
    ExistingRayCluster(address="10.0.0.5:6379", auth_token=HIDDEN),
    ObjectStoreCredentials(access_key_id="id", secret_access_key=HIDDEN),
    ModelSource(uri="s3://b/m", credentials=ObjectStoreCredentials(secret_access_key=HIDDEN)),
]


@pytest.mark.parametrize("block", SECRETIVE, ids=lambda block: type(block).__name__)
def test_secrets_show_nowhere(block: Secretive) -> None:
    dumps = [block.model_dump_json(), str(block.model_dump()), json.dumps(block.model_dump(mode="json"))]
    shown = [repr(block), str(block), *dumps]
    assert not any(SECRET in text for text in shown)
    settings = block.settings()
    if not isinstance(settings, str):  # the store's URL itself is the secret
        assert SECRET not in repr(settings)


@pytest.mark.parametrize("block", SECRETIVE, ids=lambda block: type(block).__name__)
def test_secrets_are_known_to_prefect(block: Block) -> None:
    # Prefect encrypts and masks the fields that the schema names, not those that merely look secret.
    assert type(block).model_json_schema()["secret_fields"]


@pytest.mark.parametrize(
    ("block", "values"),
    [
        (LocalRayCluster, {"num_cpus": 0}),
        (LocalRayCluster, {"num_gpus": -1}),
        (ExistingRayCluster, {}),
        (ExistingRayCluster, {"address": ""}),
        (ResultStore, {}),
        (ResultStore, {"url": ""}),
        (ResultStore, {"url": " \n"}),
    ],
)
def test_what_cannot_be_used_is_refused_in_the_form(block: type[Block], values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        block(**values)
