"""Tables of spans in CSV and Parquet files."""
