"""Rows: payloads as columns and bytes, and back. What Spark, files and records hold of a payload."""
