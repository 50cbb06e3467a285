"""One set of properties in the words of obstore, PyIceberg and Spark; what catalogs lend; what the fence keeps out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore import sign
from obstore.store import AzureStore, GCSStore, S3Store

from icewright.adapters.catalogs.rest.client import StorageCredential
from icewright.adapters.catalogs.rest.credentials import CredentialStore
from icewright.adapters.catalogs.translate import (
    rest_catalog,
    sql_catalog,
)
from icewright.adapters.files.buckets import Buckets
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.object_stores import store_of
from icewright.adapters.files.objects import open_bucket
from icewright.adapters.files.storage import Storages
from icewright.core.errors import CatalogUnavailable, Refused, StorageUnavailable, UnsupportedTable
from icewright.core.table import TableRef
from icewright.ports import VendedCredentials
from icewright.ports.work import WorkerThreads, catalog_context
from icewright.testing import FixedClock

S3 = {
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.access-key-id": "key",
    "s3.secret-access-key": "hush",
    "s3.region": "eu-1",
}
REF = TableRef("lake", ("sales",), "orders")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_s3_for_all_three() -> None:
    """The same endpoint, key and region, path style where the endpoint is not Amazon's."""
    catalog = sql_catalog("lake", {"uri": "sqlite:////c.db", "warehouse": "s3://lake/", **S3})
    conf = {k.removeprefix("spark.sql.catalog.lake."): v for k, v in catalog.spark_conf().items()}
    assert conf["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert conf["s3.path-style-access"] == "true"
    assert (conf["client.region"], conf["s3.secret-access-key"]) == ("eu-1", "hush")
    assert any("iceberg-aws-bundle" in package for package in catalog.spark_packages())
    python = catalog.pyiceberg_properties()
    assert (python["s3.region"], python["s3.endpoint"]) == ("eu-1", "http://127.0.0.1:9000")
    store = store_of("s3://lake", S3)
    assert isinstance(store, S3Store)
    assert store.config["region"] == "eu-1"
    assert str(store.config["virtual_hosted_style_request"]) == "false"


def test_local_files_need_nothing_more() -> None:
    """A catalog of local files configures no FileIO, and needs no package of a store."""
    catalog = sql_catalog("lake", {"uri": "sqlite:////c.db", "warehouse": "file:///w"})
    assert not any("io-impl" in key for key in catalog.spark_conf())
    assert len(catalog.spark_packages()) == 2


@pytest.mark.parametrize(
    ("place", "properties", "file_io", "package"),
    [
        ("gs://lake/", {"gcs.oauth2.token": "t"}, "gcp.gcs.GCSFileIO", "iceberg-gcp-bundle"),
        (
            "abfss://c@acc.dfs.core.windows.net/",
            {"adls.account-name": "acc", "adls.account-key": "a2V5"},
            "azure.adlsv2.ADLSFileIO",
            "iceberg-azure-bundle",
        ),
    ],
)
def test_google_and_azure(place: str, properties: dict[str, str], file_io: str, package: str) -> None:
    """Their FileIO and package, and a store that opens with the same properties."""
    catalog = sql_catalog("lake", {"uri": "sqlite:////c.db", "warehouse": place, **properties})
    assert catalog.spark_conf()["spark.sql.catalog.lake.io-impl"] == f"org.apache.iceberg.{file_io}"
    assert any(package in found for found in catalog.spark_packages())
    store = store_of(place.rstrip("/"), properties)
    assert isinstance(store, GCSStore | AzureStore)
    if isinstance(store, AzureStore):
        assert store.config["account_name"] == "acc"
        assert catalog.spark_conf()["spark.sql.catalog.lake.adls.auth.shared-key.account.key"] == "a2V5"


def test_places_of_two_kinds() -> None:
    """A FileIO that chooses by the path."""
    catalog = sql_catalog("lake", {"uri": "sqlite:////c.db", "warehouse": "s3://lake/"}, ["gs://other/"])
    assert catalog.spark_conf()["spark.sql.catalog.lake.io-impl"].endswith("ResolvingFileIO")
    assert len(catalog.spark_packages()) == 4


_NO_ENDPOINT = {key: S3[key] for key in S3 if key != "s3.endpoint"}
_KEY = {"adls.account-key": "a2V5"}
_EMULATOR = {"adls.blob-storage-scheme": "http", "adls.blob-storage-authority": "127.0.0.1:10000"}


@pytest.mark.parametrize(
    ("root", "properties", "address"),
    [
        ("s3://lake", _NO_ENDPOINT, "https://lake.s3.eu-1.amazonaws.com/x"),
        (
            "s3://my.lake",
            _NO_ENDPOINT,
            "https://s3.eu-1.amazonaws.com/my.lake/x",
        ),  # which no certificate names as a host
        ("s3://Old_Lake", _NO_ENDPOINT, "https://s3.eu-1.amazonaws.com/Old_Lake/x"),
        ("s3://lake", S3, "http://127.0.0.1:9000/lake/x"),
        (
            "s3://lake",
            {**S3, "s3.endpoint": "https://s3.host", "s3.force-virtual-addressing": "true"},
            "https://lake.s3.host/x",
        ),
        (
            "s3://lake",
            {**S3, "s3.endpoint": "https://s3.host", "s3.path-style-access": "false"},
            "https://lake.s3.host/x",
        ),
        ("abfss://c@acc.dfs.core.windows.net", _KEY, "https://acc.blob.core.windows.net/c/x"),
        ("wasbs://c@acc.blob.core.chinacloudapi.cn", _KEY, "https://acc.blob.core.chinacloudapi.cn/c/x"),
        ("abfss://c@onelake.dfs.fabric.microsoft.com", _KEY, "https://onelake.blob.fabric.microsoft.com/c/x"),
        ("abfs://c", {**_KEY, "adls.account-name": "acc"}, "https://acc.blob.core.windows.net/c/x"),
        ("abfs://c@acc", {**_KEY, **_EMULATOR}, "http://127.0.0.1:10000/acc/c/x"),
        ("abfs://c@acc", {**_KEY, "adls.blob-storage-authority": ".blob.host"}, "https://acc.blob.host/c/x"),
        ("abfs://c@acc", {**_KEY, "adls.blob-storage-authority": "https://host/acc"}, "https://host/acc/c/x"),
    ],
)
def test_where_a_bucket_is_asked_for(root: str, properties: dict[str, str], address: str) -> None:
    """Where PyIceberg and Java ask for it too: no request goes to another host, which may have such a bucket."""
    store: Any = store_of(root, properties)
    assert sign(store, "GET", "x", timedelta(minutes=1)).partition("?")[0] == address


@pytest.mark.parametrize(
    ("properties", "in_order"),
    [
        (_NO_ENDPOINT, True),
        ({**S3, "s3.endpoint": "https://s3.eu-1.amazonaws.com"}, True),
        ({**S3, "s3.endpoint": "https://notamazonaws.com"}, False),
        (S3, False),
    ],
)
def test_which_stores_list_keys_in_their_order(properties: dict[str, str], *, in_order: bool) -> None:
    """Amazon's, for sure."""
    assert open_bucket("s3://lake", properties).lists_in_order == in_order


@pytest.mark.parametrize(
    ("properties", "algorithm"),
    [(_NO_ENDPOINT, "sha256"), (S3, None), ({**S3, "s3.checksum-enabled": "true"}, "sha256")],
)
def test_objects_have_checksums(properties: dict[str, str], algorithm: str | None) -> None:
    """In Amazon's S3, whose buckets with a default retention take no others; elsewhere where they are asked for."""
    store = store_of("s3://lake", properties)
    assert isinstance(store, S3Store)
    assert store.config.get("checksum_algorithm") == algorithm


def test_an_arn_is_no_bucket() -> None:
    """An access point has an alias for that."""
    with pytest.raises(UnsupportedTable, match="by the access point's alias"):
        store_of("s3://arn:aws:s3:eu-1:123456789012:accesspoint", S3)


def test_azure_needs_an_account() -> None:
    """In the path or in the properties."""
    with pytest.raises(UnsupportedTable, match=r"adls\.account-name"):
        store_of("abfs://c", {})


@pytest.mark.parametrize(
    ("given", "python", "java"),
    [
        ({}, {"auth": {"type": "noop"}}, {"rest.auth.type": "none"}),
        ({"credential": "id:hush"}, {"credential": "id:hush"}, {"credential": "id:hush"}),
        (
            {"rest.auth.type": "basic", "rest.auth.basic.username": "me", "rest.auth.basic.password": "hush"},
            {"auth": {"type": "basic", "basic": {"username": "me", "password": "hush"}}},
            {"rest.auth.type": "basic", "rest.auth.basic.password": "hush"},
        ),
        (
            {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"},
            {"rest.sigv4-enabled": "true", "rest.sigv4.max-retries": "0"},
            {"rest.auth.type": "sigv4", "rest.signing-name": "s3tables"},
        ),
    ],
)
def test_how_rest_servers_are_told_who_asks(given: dict[str, str], python: Any, java: dict[str, str]) -> None:
    """Said once, in either's words; credentials are asked for unless there are some of one's own."""
    catalog = rest_catalog("lake", {"uri": "https://host/api", "warehouse": "prod", **given})
    assert catalog.pyiceberg_properties().items() >= python.items()
    conf = {k.removeprefix("spark.sql.catalog.lake."): v for k, v in catalog.spark_conf().items()}
    assert conf["rest.client.socket-timeout-ms"] == "90000"
    assert conf["rest-metrics-reporting-enabled"] == "false"
    assert conf.items() >= {**java, "type": "rest", "uri": "https://host/api", "warehouse": "prod"}.items()
    assert conf["header.X-Iceberg-Access-Delegation"] == "vended-credentials"
    assert "hush" not in repr(catalog)
    assert not rest_catalog("lake", {"uri": "https://host/api", **S3}).asks_for_credentials


def test_a_catalog_that_lends_no_more_is_not_asked_for_each_file() -> None:
    """It may be away, and each question lasts until it is given up; the files wait, and the error names both."""
    asked: list[datetime] = []

    def lend() -> VendedCredentials:
        if asked:
            asked.append(NOW)
            raise CatalogUnavailable("lake does not answer")
        asked.append(NOW)
        return VendedCredentials("s3://lake", S3, NOW)  # which is over

    opened = open_bucket("s3://lake", S3, lend)
    with pytest.raises(
        StorageUnavailable, match=r"there are no credentials .* lake does not answer.*catalog that lends"
    ):
        opened.size("s3://lake/x")
    asked.clear()
    asked.append(NOW)
    report = opened.delete([f"s3://lake/{number}" for number in range(20)], 2)
    assert (report.deleted, len(report.failures)) == ((), 20)
    assert len(asked) == 3, "once for all, and once for the first of them"


def _vending(clock: FixedClock, renewed: list[TableRef]) -> CredentialStore:
    def renew(ref: TableRef) -> None:
        renewed.append(ref)
        expires = str(int((clock.now() + timedelta(hours=1)).timestamp() * 1000))
        config = {"s3.access-key-id": f"key{len(renewed)}", "s3.session-token-expires-at-ms": expires}
        credentials.keep(ref, "", {"s3.region": "eu-1"}, {}, (StorageCredential("s3://lake/sales/orders", config),))

    credentials = CredentialStore(clock, renew)
    renew(REF)
    return credentials


def test_vended_credentials_are_renewed_in_time() -> None:
    """For files below the prefix alone, and before it expires: a listing that lasts goes on."""
    clock, renewed = FixedClock(NOW), list[TableRef]()
    credentials = _vending(clock, renewed)
    assert credentials.grant("s3://lake/sales/orders_archive/x") is None
    storages = Storages(
        LocalStorage(), Buckets({"lake": ["s3://lake/"]}, {"lake": S3}), lambda path, _: credentials.grant(path)
    )
    path = "s3://lake/sales/orders/data/x"
    assert storages.of(path) is storages.of("s3://lake/sales/orders/metadata/y")
    assert storages.of(path) is not storages.of("s3://lake/other")
    store: Any = storages.of(path)
    asked = store.store.credential_provider
    assert asked()["access_key_id"] == "key1"
    clock.time += timedelta(minutes=58)
    assert asked()["access_key_id"] == "key2"
    assert asked()["expires_at"] > clock.now()
    assert renewed == [REF, REF]
    assert "key1" not in repr(credentials.grant(path))


def test_a_renewal_that_hangs_costs_its_table_alone() -> None:
    """Credentials of another table are renewed meanwhile."""
    clock, hangs, freed = FixedClock(NOW), threading.Event(), threading.Event()

    def renew(ref: TableRef) -> None:
        if ref == REF and clock.now() > NOW:
            hangs.set()
            freed.wait(60)
        expires = str(int((clock.now() + timedelta(hours=1)).timestamp() * 1000))
        config = {"s3.access-key-id": "key", "s3.session-token-expires-at-ms": expires}
        credentials.keep(ref, "", {}, {}, (StorageCredential(f"s3://lake/{ref.name}", config),))

    credentials = CredentialStore(clock, renew)
    for name in ("orders", "refunds"):
        renew(replace(REF, name=name))
    clock.time += timedelta(hours=2)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(credentials.grant, "s3://lake/orders/x")
        try:
            assert hangs.wait(60)
            grant = pool.submit(credentials.grant, "s3://lake/refunds/x").result(30)
        finally:
            freed.set()
    assert grant is not None
    assert grant.expires is not None
    assert grant.expires > clock.now()


_AT_X, _AT_Y = {"s3.endpoint": "http://x:9000"}, {"s3.endpoint": "http://y:9000"}
_IN_CHINA, _IN = "https://s3.cn-north-1.amazonaws.com.cn", "c@one.dfs.core.windows.net"
_GCS, _ACCOUNT, _AZURE = "gcs.service.host", "adls.account-name", "adls.blob-storage-authority"
_AMAZON = {"s3.endpoint": "https://s3.eu-west-1.amazonaws.com", "s3.access-key-id": "key"}


def _at(name: str, value: str) -> dict[str, str]:
    return {name: value, "s3.access-key-id": "key"}


@pytest.mark.parametrize(
    ("places", "properties", "path", "named_by", "owner"),
    [
        (("s3://lake/", "s3://lake/"), (_AT_X, _AT_X), "s3://lake/t/f", "b", "a"),  # one store, opened in one way
        (("s3://lake/", "s3a://lake/b"), ({}, _AMAZON), "s3://lake/b/t/f", "", "b"),  # the innermost place
        (("s3://lake/", "s3://lake/b"), ({}, _AMAZON), "s3://lake/b/t/f", "a", "b"),
        (("s3://lake/", "s3://lake/b"), ({}, _AMAZON), "s3://lake/bb/f", "b", "a"),
        (("s3://lake/", "s3://lake/"), ({}, _AMAZON), "s3://lake/t/f", "b", "b"),
        (("s3://lake/", "s3://lake/"), (_AT_X, _AT_Y), "s3://lake/t/f", "a", "a"),  # two stores: who named it
        (("s3://lake/", "s3://lake/"), (_AT_X, _AT_Y), "s3n://lake/t/f", "b", "b"),
        (("s3://lake/", "s3://lake/b"), (_AT_X, _AT_Y), "s3://lake/b/t/f", "a", "a"),
        (("s3://lake/a", "s3://lake/b"), (_AT_X, _AT_Y), "s3://lake/a/t/f", "b", "b"),
        (("s3://lake/a", "s3://lake/b"), (_AT_X, _AT_Y), "s3://lake/b/t/f", "", "b"),  # one of them has the place
        (("s3://lake/a", "gs://lake/"), (_AT_X, {}), "gs://lake/t/f", "", "b"),  # another kind of storage
        (("s3://lake/a", "s3://lake/b"), (_AT_X, _AT_Y), "s3://pond/t/f", "b", "b"),  # declared by none
        (("s3://lake/", "s3://pond/"), (_AT_X, _AT_Y), "s3://lake/t/f", "b", "b"),  # by another store's alone
        (("s3://lake/", "s3://pond/"), (_AT_X, {}), "s3://lake/t/f", "b", "a"),
        (("s3://lake/", "s3://pond/"), (_AT_X, {"gcs.service.host": "http://y"}), "s3://lake/t/f", "b", "a"),
        (("s3://lake/", "s3://lake/b"), (_AT_X, _at("s3.endpoint", "HTTP://X:9000/")), "s3://lake/b/f", "a", "b"),
        (("s3://lake/", "s3://lake/b"), (_AT_X, _at("s3.endpoint", "X:9000/")), "s3://lake/b/f", "a", "b"),
        (
            ("s3://lake/", "s3://lake/b"),
            (_at("s3.endpoint", "x"), _at("s3.endpoint", "//X/")),
            "s3://lake/b/f",
            "a",
            "b",
        ),
        (("s3://lake/", "s3://lake/b"), ({"uri": "x"}, {"uri": "y"}), "s3://lake/b/f", "b", "a"),
        (("s3://lake/a", "s3://lake/b"), ({}, _AMAZON), "s3://lake/c/f", "", "a"),
        (("s3://lake/a", "s3://lake/b"), ({}, _AMAZON), "s3://lake/c/f", "b", "b"),
        (("s3://lake/", "s3://lake/b"), (_AT_X, {}), "s3://lake/b/f", "a", "a"),
        (("s3://lake/", "s3://lake/b"), (_AMAZON, _AT_X), "s3://lake/b/f", "a", "a"),
        (("s3://lake/", "s3://lake/b"), (_AMAZON, _at("s3.endpoint", _IN_CHINA)), "s3://lake/b/f", "a", "b"),
        (("gs://lake/", "gs://lake/b"), (_at(_GCS, "http://x"), _at(_GCS, "http://y")), "gs://lake/b/f", "a", "a"),
        (("abfs://c/", "abfss://c/b"), (_at(_ACCOUNT, "one"), _at(_ACCOUNT, "two")), "abfs://c/b/f", "a", "a"),
        ((f"abfs://{_IN}/", f"abfs://{_IN}/b"), (_at(_ACCOUNT, "one"), {}), f"abfs://{_IN}/b/f", "a", "b"),
        (
            (f"abfs://{_IN}/", f"abfs://{_IN}/b"),
            (_at(_AZURE, "x:1"), _at(_AZURE, "y:1")),
            f"abfs://{_IN}/b/f",
            "a",
            "a",
        ),
    ],
)
def test_whose_properties_open_a_bucket(
    places: tuple[str, str], properties: tuple[dict[str, str], ...], path: str, named_by: str, owner: str
) -> None:
    """Those of the catalog that has the place, and of the one that named the path where there are several stores."""
    buckets = Buckets({"a": places[:1], "b": places[1:]}, dict(zip("ab", properties, strict=True)))
    with catalog_context(named_by), WorkerThreads(1) as pool:
        assert pool.submit(buckets.owner, "/".join(path.split("/")[:3]), path).result() == owner


@pytest.mark.parametrize("path", ["s3://lake/t/f", "s3://lake/a/t/f"])
def test_a_bucket_of_several_stores_is_not_guessed(path: str) -> None:
    """Where nobody knows who named the path, nothing is opened, looked at or deleted."""
    buckets = Buckets({"a": ["s3://lake/a"], "b": ["s3://lake/a"]}, {"a": _AT_X, "b": _AT_Y})
    storages = Storages(LocalStorage(), buckets)
    with pytest.raises(UnsupportedTable, match=r"catalogs a, b have a bucket of this name.* allowed_locations of one"):
        storages.of(path)
    assert storages.stat([path], 1) == {}
    assert storages.delete([path], 1).failures.keys() == {path}
    endpoints = []
    for catalog in ("a", "b"):
        with catalog_context(catalog):
            opened: Any = storages.of(path)
            endpoints.append(opened.store.config["endpoint"])
    assert endpoints == ["http://x:9000", "http://y:9000"]


def test_a_grant_is_no_secret_in_print() -> None:
    """The properties of vended credentials are not shown where they are printed."""
    assert "hush" not in repr(VendedCredentials("s3://lake/t", {"s3.secret-access-key": "hush"}))


def test_the_fence_holds(tmp_path: Path) -> None:
    """Nothing outside is written or deleted, also through a link; inside all goes on."""
    inside, outside = tmp_path / "qa", tmp_path / "prod"
    inside.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("x")
    (inside / "link").symlink_to(outside)
    storages = Storages(
        LocalStorage(), Buckets(), allows=lambda path: path.removeprefix("file://").startswith(f"{inside}/")
    )
    with pytest.raises(Refused, match="environment"):
        storages.write(f"{outside}/new", b"x")
    storages.write(f"{inside}/new", b"x")
    report = storages.delete([f"{inside}/new", f"{outside}/precious", f"{inside}/link/precious"], 2)
    assert report.deleted == (f"{inside}/new",)
    assert set(report.failures) == {f"{outside}/precious", f"{inside}/link/precious"}
    assert (outside / "precious").is_file()
