"""The engine: pure state machines. No sockets, clocks, threads, files or randomness.

Every machine takes an event and returns effects; all runners run these same machines, and only what
moves messages differs. Read `worker` for how they work together, then the machines:

==============  ====================================================================
`worker`        runs the whole graph for one range of hashes
`program`       how a graph is laid out for a worker: routes, ranks, regions
`routing`       which worker an item goes to
`mapping`       map and broadcast, a batch at a time
`grouping`      buckets, replay and tombstones
`reduction`     the cycle of drifting state, run in one step
`transaction`   transactions without locks: the protocol, and why it ends
`versions`      the states: versions by key, votes
`closing`       the closers: votes, decisions, aborts
`cycles`        how cycles are run: loops, and states with their closers
`turns`         whose turn it is among all that one element begets
`barrier`       holds output until the minimal time has passed it
`reading`       a worker's part of an answer to a query of state
`asking`        the coordinator's: the moment of the answer, and that it is kept
`acker`         the minimal time, from acks by xor and reports of fronts
`gate`          credits: how far a front may run ahead
`markers`       the baseline: items by arrival, snapshots by markers; with `arrival`
                (its stateful machines), `channels` and `snapshot`
==============  ====================================================================
"""
