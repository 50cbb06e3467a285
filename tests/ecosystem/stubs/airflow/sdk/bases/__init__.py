"""Where Airflow keeps its sensors."""
