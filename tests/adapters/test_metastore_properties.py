"""One set of properties of Glue and of Hive metastores in the words of PyIceberg and Spark."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from icewright.adapters.catalogs.translate import CatalogProperties, glue_catalog, hive_catalog, sql_catalog
from icewright.app.bootstrap import application, read_config
from icewright.core.errors import ConfigError


def _spark(catalog: CatalogProperties) -> dict[str, str]:
    return {k.removeprefix("spark.sql.catalog.lake."): v for k, v in catalog.spark_conf().items()}


def test_glue_for_both() -> None:
    """Region, account and keys are said once; Spark has the keys outside the catalog's properties."""
    keys = {"glue.access-key-id": "key", "glue.secret-access-key": "hush", "glue.session-token": "t"}
    said = {"warehouse": "s3://lake/", "glue.region": "eu-1", "glue.id": "123", "glue.max-retries": "3", **keys}
    catalog = glue_catalog("lake", said)
    spark = _spark(catalog)
    assert spark["catalog-impl"] == "org.apache.iceberg.aws.glue.GlueCatalog"
    assert spark["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (spark["client.region"], spark["glue.id"], spark["warehouse"]) == ("eu-1", "123", "s3://lake/")
    assert "hush" not in spark.values()
    assert catalog.driver_properties() == {
        "aws.accessKeyId": "key",
        "aws.secretAccessKey": "hush",
        "aws.sessionToken": "t",
    }
    python: dict[str, object] = dict(catalog.pyiceberg_properties())
    assert (python["type"], python["glue.region"], python["glue.max-retries"]) == ("glue", "eu-1", 3)
    assert sum("iceberg-aws-bundle" in package for package in catalog.spark_packages()) == 1
    assert "hush" not in repr(catalog)


def test_keys_for_glue_and_s3_alike() -> None:
    """`client.*` are PyIceberg's words for all of AWS: Spark's S3 has them too."""
    catalog = glue_catalog("lake", {"client.access-key-id": "key", "client.secret-access-key": "hush"})
    spark = _spark(catalog)
    assert (spark["s3.access-key-id"], spark["s3.secret-access-key"]) == ("key", "hush")
    assert catalog.driver_properties()["aws.secretAccessKey"] == "hush"
    assert not sql_catalog("lake", {"uri": "sqlite:////c.db", "warehouse": "file:///w"}).driver_properties()


@pytest.mark.parametrize(
    ("properties", "host"),
    [
        ({"client.region": "eu-1"}, "glue.eu-1.amazonaws.com"),
        ({"glue.region": "cn-north-1"}, "glue.cn-north-1.amazonaws.com.cn"),
        ({}, "glue.amazonaws.com"),
        ({"glue.endpoint": "https://glue.example:8443"}, "glue.example"),
    ],
)
def test_where_glue_is(properties: dict[str, str], host: str) -> None:
    """The host that an environment must hold."""
    assert list(glue_catalog("lake", properties).hosts.values()) == [host]


def test_a_metastore_for_both() -> None:
    """All addresses; the warehouse if there is one; locks as Iceberg's clients know them."""
    catalog = hive_catalog(
        "lake",
        {
            "uri": "thrift://a:9083, thrift://b:9084/",
            "warehouse": "s3://lake/",
            "s3.endpoint": "http://127.0.0.1:9000",
            "engine.hive.lock-enabled": "false",
            "iceberg.hive.lock-timeout-ms": "9000",
        },
    )
    spark, python = _spark(catalog), catalog.pyiceberg_properties()
    assert spark["type"] == python["type"] == "hive"
    assert spark["uri"] == python["uri"] == "thrift://a:9083,thrift://b:9084"
    assert spark["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert spark["hadoop.iceberg.engine.hive.lock-enabled"] == "false"
    assert spark["hadoop.iceberg.hive.lock-timeout-ms"] == "9000"
    assert any("iceberg-aws-bundle" in package for package in catalog.spark_packages())
    assert catalog.hosts == {"uri": "a", "uri[1]": "b", "s3.endpoint": "127.0.0.1"}
    bare = hive_catalog("lake", {"uri": "thrift://a:9083"})
    assert "warehouse" not in _spark(bare)
    assert not any("lock-enabled" in key for key in _spark(bare))


CONFIG = """\
state: sqlite:///{home}/state.db
catalogs:
  lake: {{type: glue, properties: {{glue.access-key-id: a, glue.secret-access-key: hush-1}}}}
  pond: {{type: glue, properties: {{glue.access-key-id: b, glue.secret-access-key: hush-2}}}}
cache: {{folder: "{home}/cache"}}
"""


def test_two_accounts_in_one_pool(tmp_path: Path) -> None:
    """A driver has one set of AWS keys: catalogs with different ones want pools of their own, and no key is said."""
    file = tmp_path / "icewright.yaml"
    file.write_text(CONFIG.format(home=tmp_path))
    refused = pytest.raises(ConfigError, match=r"catalogs\.pond\.pool: .*give it its own")
    with refused as caught, application(read_config(file), kind="tests"):
        pass
    assert "hush" not in str(caught.value)
    opened = {opened.path for opened in psutil.Process().open_files()}
    assert str(tmp_path / "state.db") not in opened, "what was opened before the refusal is closed"
    file.write_text(
        CONFIG.format(home=tmp_path).replace(
            "type: glue, properties: {glue.access-key-id: b",
            "pool: other, type: glue, properties: {glue.access-key-id: b",
        )
        + "pools: {other: {}}\n"
    )
    with application(read_config(file), kind="tests") as app:
        assert app.pools["other"].driver["aws.accessKeyId"] == "b"
        assert "hush" not in repr(app.pools["other"])
