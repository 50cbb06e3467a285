"""The tables of namespace `shop`: every kind of deletes, an evolved table, and a healthy one."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType, TimestamptzType

from icewright.app.demo import rows
from icewright.app.demo.backdate import backdate
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake, Rot

PAYMENT_BACK = 17  # deleted by one checkpoint, written again by a later one: its row is live
PAYMENT_GONE = 18  # deleted and never written again
PAYMENTS_GONE_BY_ORDER = (23, 32)  # deleted by their order and method

# What a checkpoint of `payments` does to those, by its number.
_DELETES = {3: [PAYMENT_BACK, PAYMENT_GONE]}
_DELETES_BY_ORDER = {4: [PAYMENTS_GONE_BY_ORDER[0]], 8: [PAYMENTS_GONE_BY_ORDER[1]]}
_REWRITTEN = {6: [PAYMENT_BACK]}

_MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}

_ORDERS = Schema(
    NestedField(1, "order_id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=True),
    NestedField(3, "customer_id", LongType()),
    NestedField(4, "status", StringType()),
    NestedField(5, "amount", DecimalType(10, 2)),
    NestedField(6, "ordered", TimestamptzType()),
)
_BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
_PAYMENTS = Schema(
    NestedField(1, "payment_id", LongType(), required=True),
    NestedField(2, "order_id", LongType(), required=True),
    NestedField(3, "method", StringType(), required=True),
    NestedField(4, "amount", DecimalType(10, 2)),
    NestedField(5, "paid", TimestamptzType()),
    identifier_field_ids=[1],
)
_CUSTOMERS = Schema(
    NestedField(1, "customer_id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "country", StringType()),
    NestedField(4, "since", DateType()),
)
_PRODUCTS = Schema(
    NestedField(1, "product_id", LongType(), required=True),
    NestedField(2, "title", StringType()),
    NestedField(3, "price", DecimalType(10, 2)),
    NestedField(4, "listed", DateType()),
)


def orders(lake: Lake, name: str = "shop.orders", commits: int = 6, rows_per_file: int = 500) -> Rot:
    """Make a merge-on-read table, partitioned by region, with position deletes that Spark wrote."""
    craft = Craft(lake, name, _ORDERS, _BY_REGION, _MERGE_ON_READ)
    first = 0
    for at in rows.spread(lake.now - timedelta(days=9), lake.now - timedelta(days=2), commits, craft.random):
        files = []
        for region in rows.REGIONS:
            files.append(craft.data(rows.orders(craft.random, rows_per_file, at, region, first), region=region))
            first += rows_per_file
        craft.commit(at, files)
    craft.fit_target()
    craft.publish()
    spark, table = lake.spark(), lake.quoted(name)
    spark.sql(f"DELETE FROM {table} WHERE `order_id` % 17 = 0")  # noqa: S608 - a quoted name
    spark.sql(
        f"MERGE INTO {table} AS `old` USING (SELECT `id` * 23 AS `order_id` FROM range({first // 20})) AS `new` "  # noqa: S608
        "ON `old`.`order_id` = `new`.`order_id` WHEN MATCHED THEN UPDATE SET `status` = 'refunded' WHEN NOT MATCHED "
        "THEN INSERT (`order_id`, `region`, `status`) VALUES (`new`.`order_id`, 'emea', 'late')"
    )
    spark.sql(f"DELETE FROM {table} WHERE `region` = 'latam' AND `order_id` % 5 < 2")  # noqa: S608
    backdate(lake, name, [lake.now - timedelta(hours=hours) for hours in (30, 20, 6)])
    return lake.rot(
        name, "Every reader must merge position deletes into it; in one region nearly half of the rows are dead."
    )


def returns(lake: Lake, name: str = "shop.returns", size: int = 4000) -> Rot:
    """Make a format v3 table with deletion vectors that Spark wrote."""
    spark, table = lake.spark(), lake.quoted(name)
    lake.identifier(name)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in ({"format-version": "3"} | _MERGE_ON_READ).items())
    spark.sql(
        f"CREATE TABLE {table} (`return_id` bigint NOT NULL, `reason` string, `amount` decimal(10, 2), `day` date) "
        f"USING iceberg PARTITIONED BY (`reason`) LOCATION 'file://{lake.folder(name)}' TBLPROPERTIES ({properties})"
    )
    for part in range(2):
        spark.sql(
            f"INSERT INTO {table} SELECT `id`, element_at(array('broken', 'late', 'wrong'), int(`id` % 3) + 1), "  # noqa: S608
            "cast(`id` % 9973 / 7 AS decimal(10, 2)), date_add(date'2026-01-01', int(`id` % 200)) "
            f"FROM range({part * size // 2}, {(part + 1) * size // 2}, 1, 1)"
        )
    spark.sql(f"DELETE FROM {table} WHERE `return_id` % 4 = 1")  # noqa: S608
    spark.sql(f"DELETE FROM {table} WHERE `return_id` % 10 = 3")  # noqa: S608
    backdate(lake, name, [lake.now - timedelta(hours=hours) for hours in (80, 60, 24, 8)])
    return lake.rot(name, "A third of its rows are dead: deletion vectors of format v3 hide them from readers.")


def payments(lake: Lake, name: str = "shop.payments", checkpoints: int = 12, rows_per_file: int = 40) -> Rot:
    """Make an upsert table as Flink writes it: with each data file an equality-delete file for the same keys.

    Two checkpoints delete by order and method too. There must be 9 checkpoints and 40 rows in a file at least.
    """
    craft = Craft(lake, name, _PAYMENTS, properties={"write.upsert.enabled": "true"})
    reserved = {PAYMENT_BACK, PAYMENT_GONE, *PAYMENTS_GONE_BY_ORDER}
    times = rows.spread(lake.now - timedelta(days=6), lake.now - timedelta(hours=3), checkpoints, craft.random)
    for number, at in enumerate(times):
        first = number * rows_per_file
        older = [payment for payment in range(first) if payment not in reserved]
        changed = sorted(craft.random.sample(older, min(len(older), rows_per_file // 4)))
        written = [*range(first, first + rows_per_file), *changed, *_REWRITTEN.get(number, [])]
        deletes = [craft.equality_deletes({"payment_id": written + _DELETES.get(number, [])})]
        if number in _DELETES_BY_ORDER:
            deletes.append(craft.equality_deletes(rows.payment_orders(_DELETES_BY_ORDER[number])))
        craft.commit(at, [craft.data(rows.payments(craft.random, written, at))], deletes=deletes)
    craft.publish()
    return lake.rot(
        name, "Flink upserts: every reader must compare each row with the keys of all later equality deletes."
    )


def customers(lake: Lake, name: str = "shop.customers", commits: int = 10, rows_per_file: int = 60) -> Rot:
    """Make a table that was partitioned and got other columns half-way; small files lie under both specs."""
    craft = Craft(lake, name, _CUSTOMERS)
    first = 0
    for at in rows.spread(lake.now - timedelta(days=12), lake.now - timedelta(days=5), commits, craft.random):
        craft.commit(at, [craft.data(rows.customers(craft.random, rows_per_file, at, first))])
        first += rows_per_file
    craft.publish()
    table = lake.catalog.load_table(lake.identifier(name))
    with table.update_spec() as spec:
        spec.add_identity("country")
    with table.update_schema() as schema:
        schema.rename_column("name", "full_name")
        schema.add_column("email", StringType())
    arrow = schema_to_pyarrow(table.schema())
    times = rows.spread(lake.now - timedelta(days=4), lake.now - timedelta(hours=7), (commits + 1) // 2, craft.random)
    for at in times:
        columns = dict(rows.customers(craft.random, rows_per_file, at, first))
        columns["full_name"] = columns.pop("name")
        columns["email"] = [f"{number}@example.com" for number in columns["customer_id"]]
        table.append(pa.Table.from_pydict(columns, schema=arrow))
        first += rows_per_file
    backdate(lake, name, times)
    return lake.rot(name, "Its small files lie under two partition specs, and columns were renamed and added between.")


def products(lake: Lake, name: str = "shop.products", commits: int = 3, rows_per_file: int = 2000) -> Rot:
    """Make a healthy table: a few good files, written in the last hours."""
    craft = Craft(lake, name, _PRODUCTS)
    times = rows.spread(lake.now - timedelta(hours=5), lake.now - timedelta(hours=2), commits, craft.random)
    for number, at in enumerate(times):
        craft.commit(at, [craft.data(rows.products(craft.random, rows_per_file, number * rows_per_file))])
    craft.fit_target()
    craft.publish()
    return lake.rot(name, "Nothing is wrong: a few good files, written in the last hours.")
