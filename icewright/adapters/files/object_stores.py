"""Opening object stores through obstore by Iceberg's properties: S3, Google, Azure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from icewright.adapters.files.storage import CredentialSource
from icewright.core.errors import StorageUnavailable, UnsupportedTable
from icewright.core.paths import split

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, S3Config

_S3 = ("s3", "s3a", "s3n")
_GCS = ("gs",)
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
# what obstore calls the settings, and what PyIceberg and Iceberg's Java FileIOs do; the first that is set counts
_S3_SETTINGS = {
    "endpoint": ("s3.endpoint",),
    "access_key_id": ("s3.access-key-id", "client.access-key-id"),
    "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "region": ("s3.region", "client.region"),
}
_GCS_SETTINGS = {"service_account_path": ("gcs.service-account-path",), "base_url": ("gcs.service.host",)}
_AZURE_SETTINGS = {
    "account_name": ("adls.account-name", "adls.auth.shared-key.account.name"),
    "account_key": ("adls.account-key", "adls.auth.shared-key.account.key"),
    "sas_key": ("adls.sas-token",),
    "tenant_id": ("adls.tenant-id",),
    "client_id": ("adls.client-id",),
    "client_secret": ("adls.client-secret",),
}
_RETRY: Any = {"max_retries": 8, "retry_timeout": timedelta(seconds=120)}


def store_of(root: str, properties: Mapping[str, str], vended: CredentialSource | None = None) -> ObjectStore:
    """Return the store of `scheme://bucket`. `vended` gives credentials whenever the last ones are about to expire."""
    place = split(root)
    first = vended() if vended is not None else None
    merged = {**properties, **(first.properties if first is not None else {})}
    if place.scheme in _S3:
        return _s3(place.authority, merged, vended)
    if place.scheme in _GCS:
        return _gcs(place.authority, merged, vended)
    if place.scheme in _AZURE:
        return _azure(place.authority, merged, vended)
    raise UnsupportedTable(f"{root}: only local files, S3, Google Cloud Storage and Azure are supported")


def is_amazon(endpoint: str) -> bool:
    """Return whether the endpoint of a bucket is S3 of Amazon's own; blank is the default one."""
    return re.fullmatch(r"(https://([^/]+\.)?amazonaws\.com(\.cn)?/?)?", endpoint) is not None


def settings(names: Mapping[str, tuple[str, ...]], properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties under obstore's names."""
    values = {name: next((properties[k] for k in keys if properties.get(k)), None) for name, keys in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _client(endpoint: str) -> ClientConfig:
    return {"allow_http": endpoint.startswith("http://"), "timeout": timedelta(seconds=60)}


def _s3(bucket: str, properties: Mapping[str, str], vended: CredentialSource | None) -> ObjectStore:
    if bucket.startswith("arn:"):
        raise UnsupportedTable(f"s3://{bucket}: an ARN names no bucket: spell locations by the access point's alias")
    config = settings(_S3_SETTINGS, properties)
    endpoint = config.get("endpoint", "")
    virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
    virtual |= properties.get("s3.path-style-access", "true").lower() == "false"
    # a name with dots, capitals or underscores is no label of a host that has a certificate: SDKs put it into the path
    virtual = (virtual or not endpoint) and re.fullmatch("[a-z0-9-]+", bucket) is not None
    config["virtual_hosted_style_request"] = virtual
    # a bucket with a default retention takes no object without one; some other stores take none with one
    if is_amazon(endpoint) or properties.get("s3.checksum-enabled", "false").lower() == "true":
        config["checksum_algorithm"] = "sha256"
    if virtual and endpoint:  # obstore wants the bucket there, others add it
        config["endpoint"] = endpoint.replace("://", f"://{bucket}.", 1)
    provider: Any = None
    if vended is not None:
        config = {k: v for k, v in config.items() if k not in ("access_key_id", "secret_access_key", "session_token")}
        provider = _credential_provider(vended, _s3_credentials)
    return S3Store(
        bucket,
        config=cast("S3Config", config),
        client_options=_client(endpoint),
        retry_config=_RETRY,
        credential_provider=provider,
    )


def _gcs(bucket: str, properties: Mapping[str, str], vended: CredentialSource | None) -> ObjectStore:
    config = settings(_GCS_SETTINGS, properties)
    provider: Any = None
    if vended is not None:
        provider = _credential_provider(vended, lambda vended: {"token": vended.get("gcs.oauth2.token", "")})
    elif token := properties.get("gcs.oauth2.token"):
        provider = lambda: {"token": token, "expires_at": None}  # noqa: E731
    return GCSStore(
        bucket,
        config=cast("GCSConfig", config),
        client_options=_client(config.get("base_url", "")),
        retry_config=_RETRY,
        credential_provider=provider,
    )


def _azure(authority: str, properties: Mapping[str, str], vended: CredentialSource | None) -> ObjectStore:
    """Return the store of `container@account.dfs.core.windows.net`, the authority of abfs locations."""
    container, _, host = authority.partition("@")
    config = settings(_AZURE_SETTINGS, properties)
    if host:
        config["account_name"] = host.partition(".")[0]
    account = config.get("account_name", "")
    if not account:
        raise UnsupportedTable(f"{authority}: no Azure account: give adls.account-name, or container@account in paths")
    if endpoint := _azure_endpoint(account, host, properties):
        config["endpoint"] = endpoint
    config.setdefault("sas_key", properties.get(f"adls.sas-token.{account}"))
    provider: Any = None
    if vended is not None:
        config.pop("sas_key")
        provider = _credential_provider(vended, lambda vended: {"sas_token": _sas(vended, account)})
    return AzureStore(
        container,
        config=cast("AzureConfig", {k: v for k, v in config.items() if v is not None}),
        client_options=_client(endpoint),
        retry_config=_RETRY,
        credential_provider=provider,
    )


def _azure_endpoint(account: str, host: str, properties: Mapping[str, str]) -> str:
    """Return where an account's blobs are, by the properties or the host of a path; blank for Azure's public cloud."""
    domain = host.replace(".dfs.", ".blob.", 1).partition(".")[2]
    given = properties.get("adls.blob-storage-authority") or f".{domain}"
    if "://" in given:
        return given
    if given in (".", ".blob.core.windows.net"):
        return ""
    scheme = properties.get("adls.blob-storage-scheme", "https")
    return f"{scheme}://{account}{given}" if given.startswith(".") else f"{scheme}://{given}/{account}"


def _credential_provider(
    vended: CredentialSource, to_config: Callable[[Mapping[str, str]], dict[str, Any]]
) -> Callable[[], dict[str, Any]]:
    """Return obstore's credential provider, which obstore calls again when the last credentials expire."""

    def credentials() -> dict[str, Any]:
        current = vended()
        if current is None:
            raise StorageUnavailable("the catalog vends no credentials for these files any more")
        return {**to_config(current.properties), "expires_at": current.expires}

    return credentials


def _s3_credentials(vended: Mapping[str, str]) -> dict[str, Any]:
    config = settings(_S3_SETTINGS, vended)
    return {
        "access_key_id": config.get("access_key_id", ""),
        "secret_access_key": config.get("secret_access_key", ""),
        "token": config.get("session_token"),
    }


def _sas(vended: Mapping[str, str], account: str) -> str:
    named = [v for k, v in vended.items() if k.startswith(f"adls.sas-token.{account}")]
    return (named or [vended.get("adls.sas-token", "")])[0]
