"""The engine: pure state machines. No sockets, clocks, threads, files or randomness.

Every machine takes an event and returns effects. All runners run these same machines; only what moves
messages between them differs. Read `worker` for how they work together. The rooms, from the bottom:

=============  =====================================================================
`messages`     what machines send to each other
`progress`     the acker (the minimal time, from acks by xor and reports of fronts),
               receipts, and the gate (how far a front may run ahead)
`cuts`         all state as of a global time, and what is needed to take a cut
`loops`        the hottest loops; each has a compiled twin in `emberflow.native`
`machines`     what nodes of the graph run: map, group, reduce, state, closer, barrier
`layout`       how a graph is laid out for a worker: units, ranks, regions
`queries`      reads of state: the coordinator's side and the worker's side
`interface`    what a runner may ask of a worker, by time or by arrival
`worker`       the whole graph for one range of hashes: regions, turns, routing
`arrival`      the baseline: items by arrival, snapshots by markers
=============  =====================================================================
"""
