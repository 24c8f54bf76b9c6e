"""Text: sources, documents, disjoint splits, statistics. From what the user names to Parquet files."""
