"""Readers of spans tables in CSV and Parquet files."""
