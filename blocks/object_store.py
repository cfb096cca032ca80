"""How to reach object stores."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from blocks.pasted import PASTED
from dray.storage import ObjectStoreOptions


class ObjectStoreCredentials(Block):
    """Endpoint and keys for S3 and stores that speak its protocol.

    Example:
        ```python
        from blocks import ObjectStoreCredentials

        options = ObjectStoreCredentials.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray Object Store Credentials"
    _block_type_slug = "dray-object-store-credentials"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/reference.md")

    model_config = PASTED

    endpoint: str | None = Field(default=None, description="Endpoint URL, for stores other than AWS S3.")
    region: str | None = Field(default=None, description="Region of the bucket.")
    access_key_id: str | None = Field(
        default=None, description="Access key id; the environment's when left out."
    )
    secret_access_key: SecretStr | None = Field(default=None, description="Secret access key.")
    allow_http: bool = Field(default=False, description="Allow plain HTTP, for a store on the same machine.")

    def settings(self) -> ObjectStoreOptions:
        """The frozen form."""
        secret = self.secret_access_key.get_secret_value() if self.secret_access_key is not None else None
        return ObjectStoreOptions(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=secret,
            allow_http=self.allow_http,
        )
