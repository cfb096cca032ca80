"""What a user says of a cluster of EC2 instances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dray.cluster.providers.checking import SHARED_BOUNDS, Bounds, check_form, check_numbers, markets_of
from dray.cluster.providers.protocol import Market
from dray.errors import ConfigError

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_FORMS = {
    "region": re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d"),
    "image": re.compile(r"ami-[0-9a-f]{8,17}"),
    "security_group": re.compile(r"sg-[0-9a-f]{8,17}"),
}
_SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
_TYPE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")
_PROFILE = re.compile(r"[\w+=,.@-]{1,128}")
_PATH = re.compile(r"/[\w./+-]*")
_VARIABLE = re.compile(r"(?!RAY_AUTH_)[A-Za-z_]\w{0,63}", re.ASCII)
_PARAMETER = re.compile(r"/[\w./-]{1,255}", re.ASCII)
_MOST_VARIABLES = 24  # EC2 takes 16 KiB of user data
BOUNDS: Bounds = {
    **SHARED_BOUNDS,
    "disk_gb": (8, 16384),
    "input_tokens": (1, 1e6),
    "output_tokens": (1, 1e6),
    "tensor_parallel_size": (1, 1024),
    "pipeline_parallel_size": (1, 1024),
    "nnodes": (1, 1000),
}
ENGINE_ARGUMENTS = ("tensor_parallel_size", "pipeline_parallel_size", "nnodes", "quantization")
"""Of a job's engine: these fields of the settings say on which types the model fits."""


@dataclass(frozen=True, kw_only=True)
class EC2Settings:
    """A head on demand, and ``workers`` instances, of which ``minimum`` have to come.

    Args:
        image: an AMI with dray and its Ray in ``python``'s environment.
        instance_types: those to choose from; empty for all of dray's catalogue that hold the model.
        model: folder or URI of the model that the cluster is for; one of 8 billion parameters where None.
        input_tokens, output_tokens: of a usual request, to compare types by.
        tensor_parallel_size, pipeline_parallel_size, nnodes, quantization: of the engine, to compare types
            by; a job's own engine arguments take their place.
        lifetime: seconds after which machines end by themselves, unless a driver puts that off.
        start_seconds, join_seconds: that the head has to answer, and the ``minimum`` to join.
        root_device: of the image, whose disk is to have ``disk_gb``.
        env_parameters: variables of head and workers, each with the parameter of Systems Manager that has its
            value.
        endpoint: of an API other than AWS's own. The keys are those of the environment where None.

    Raises:
        ConfigError: a value cannot be; names the field.
    """

    name: str = "dray"
    region: str
    subnets: tuple[str, ...]
    security_group: str
    instance_profile: str
    image: str
    head_type: str = "m7i.xlarge"
    instance_types: tuple[str, ...] = ()
    workers: int = 1
    minimum: int = 1
    spot: bool = True
    on_demand: bool = True
    model: str | None = None
    input_tokens: float = 1024
    output_tokens: float = 128
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nnodes: int = 1
    quantization: str | None = None
    lifetime: float = 1800
    start_seconds: float = 600
    join_seconds: float = 900
    disk_gb: int = 200
    root_device: str = "/dev/xvda"
    python: str = "/opt/dray/bin/python"
    port: int = 6379
    env_parameters: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)

    kind = "ec2"

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"ec2: name {self.name!r} must be 1 to 40 lowercase letters, digits and dashes between them"
            )
        for name, form in _FORMS.items():
            self._refuse(name, getattr(self, name), form)
        for one in self.subnets:
            self._refuse("subnets", one, _SUBNET)
        for one in (self.head_type, *self.instance_types):
            self._refuse("instance_types", one, _TYPE)
        self._refuse("instance_profile", self.instance_profile, _PROFILE)
        self._refuse("python", self.python, _PATH)
        self._refuse("root_device", self.root_device, _PATH)
        self._check_variables()
        check_numbers(self.kind, self, BOUNDS)
        if not self.subnets:
            raise ConfigError("ec2: subnets is empty; name one in each zone that may be used")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("ec2: access_key_id and secret_access_key go together; give both, or neither")

    @property
    def markets(self) -> frozenset[Market]:
        """Where workers may come from."""
        return markets_of(self)

    def _check_variables(self) -> None:
        """A text that is no parameter's name is not shown: it may be the secret itself."""
        if len(self.env_parameters) > _MOST_VARIABLES:
            raise ConfigError(f"ec2: env_parameters has more than {_MOST_VARIABLES} variables; name fewer")
        for name, parameter in self.env_parameters.items():
            self._refuse("env_parameters", name, _VARIABLE)
            if _PARAMETER.fullmatch(parameter) is None:
                raise ConfigError(
                    f"ec2: env_parameters: {name} names no parameter of Systems Manager; write its name, "
                    "such as /dray/env/hf-token, and keep the value there"
                )

    def _refuse(self, name: str, value: str, form: re.Pattern[str]) -> None:
        check_form(self.kind, name, value, form)
