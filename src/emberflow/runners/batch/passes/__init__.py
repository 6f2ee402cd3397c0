"""The passes of a batch: what a Spark task does with sorted items, one key after another."""
