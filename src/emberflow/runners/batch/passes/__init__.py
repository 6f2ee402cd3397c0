"""The passes of a batch: what a Spark task does with the sorted items of one key after another."""
