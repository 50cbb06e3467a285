"""What the operators need of Airflow, for machines that have none."""
