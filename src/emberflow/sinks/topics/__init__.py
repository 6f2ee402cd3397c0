"""How `sinks.Kafka` stores: the end of a partition, blocks of partitions, and both kinds of writers.

`records` reads where a partition ends. `blocks` says which partitions share transactions, and under which
ids. `transactions` stores bundles as transactions, `idempotence` without any; `writer` is what both share.
"""
