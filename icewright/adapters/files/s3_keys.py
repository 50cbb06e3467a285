"""Exact keys of an S3 bucket, through boto3: obstore lists paths, and fails at keys that are no path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from obstore.exceptions import GenericError
from obstore.store import S3Store

_TIMEOUTS: Mapping[str, Any] = {
    "connect_timeout": 60,
    "read_timeout": 60,
    "retries": {"mode": "standard", "max_attempts": 8},
}


def key_pages(store: S3Store, prefix: str, after: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the objects below the prefix whose keys come after one: pages of `Key`, `Size` and `LastModified`.

    Raises obstore's errors. A bucket that does not list its keys in their order is one: no listing could go on after
    one of them.
    """
    try:
        pages = _client(store).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=store.config["bucket"], Prefix=prefix, StartAfter=after):
            entries = page.get("Contents", [])
            for entry in entries:
                if entry["Key"] <= after:
                    raise GenericError("the bucket does not list its keys in their order")
                after = entry["Key"]
            if entries:
                yield entries
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = error.response.get("Error", {}).get("Code")
        raise GenericError(f"{error} (status code: {status}, <Code>{code}</Code>)") from error  # as obstore words it
    except (BotoCoreError, ResponseParserError) as error:
        raise GenericError(str(error)) from error


def _client(store: S3Store) -> Any:  # noqa: ANN401 - boto3 makes its classes when it runs
    """Return a client by the store's settings; where the store has no keys both look for them in the environment."""
    config: Mapping[str, Any] = store.config
    provider: Any = store.credential_provider
    keys = config if provider is None else provider()
    token = "session_token" if provider is None else "token"
    style = "virtual" if config.get("virtual_hosted_style_request") == "true" else "path"
    endpoint = (config.get("endpoint") or "").replace(f"://{config['bucket']}.", "://", 1 if style == "virtual" else 0)
    return boto3.Session().client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=config.get("region"),
        aws_access_key_id=keys.get("access_key_id"),
        aws_secret_access_key=keys.get("secret_access_key"),
        aws_session_token=keys.get(token),
        config=Config(s3={"addressing_style": style}, **_TIMEOUTS),
    )
