"""Data files rewritten as Arrow inside tasks of Spark: planned and committed by Iceberg, distributed by Spark."""
