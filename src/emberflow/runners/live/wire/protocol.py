"""The kinds of messages on the wire: one byte each, before the body.

Links are FIFO (`wire.links`). If the order of two kinds matters, the comment of the later one says so.
"""

from __future__ import annotations

# Workers to the coordinator; the envelope says which worker:
HELLO = b"H"  # (graph fingerprint, address for frames)
READY = b"R"  # the greatest last global time of its sinks: its part of the cut is restored
ACK = b"A"  # an Ack; where workers have accounts, a Statement
SETTLED = b"T"  # a Moment: all output below is stored; see `driver.progress`
BUNDLE = b"B"  # a StoredBundle for a sink that runs in the driver
CAPTURED = b"C"  # a Captured: a part of a cut is stored
NEWS = b"N"  # WorkerNews, a few times a second
DONE = b"D"  # WorkerNews: all is stored
FAILED = b"X"  # an exception
LOGGED = b"g"  # LoggedBatch: what was logged in its process since the last one
BOUNDED = (
    b"I"  # the greatest time that entered, the least promise: its fronts hold, or halt as HALT says
)
PAUSED = b"W"  # None, behind the acks of all elements it read
# What SUCCESSOR asks for is there, or why not, and below which moment all is that entered before it.
PREPARED = b"p"  # (the number of SUCCESSOR, an exception or None, a Moment)
# What the version that is mirrored, and its mirror, have released; and below which moments that is all.
RELEASED = b"l"  # ([Released], [Released], (Moment, Moment))
COPIED = b"c"  # None: what AHEAD names is read
BEAT = b"V"  # None: its process is alive, even if its loop is busy
ANSWERS = b"O"  # [ReadPage or FrontsReply]: answers to ASK; see `wire.questions`
# The coordinator to workers:
PEERS = b"P"  # ([address], {(sink, partition): last global time}; None if TAKE_OVER will follow)
START = b"Z"  # fronts may begin: the greatest last global time of all sinks, and a bound or None
PROGRESS = b"G"  # a Progress
CUT = b"K"  # a CutOrder, behind the progress to its moment
HURRY = b"k"  # None: somebody waits for the cut under way
COMMITTED = b"M"  # the Moment of a cut that is committed
# SETTLED: a Moment, below which all output of all workers is stored; to workers that feed fronts
STORED = b"S"  # (sink, partition), bundles: the driver has stored so many more
ASK = b"Y"  # [WorkerRead, FrontsRequest, NextPage or CancelRead], behind the progress to their moments
HOLD = b"h"  # read no elements until HALT or GO_ON, and answer BOUNDED
HALT = b"L"  # read no more elements; or none from a time on, and answer BOUNDED
GO_ON = b"J"  # read on, behind a HALT with a time that has passed, and answer BOUNDED
# Make the loop of another version, which takes over or runs beside this one, and answer PREPARED:
# (a number, its plan in bytes, whether it runs beside, which worker of it this one is)
SUCCESSOR = b"s"
TWIN = b"w"  # a Moment, behind the progress to it: let the other version run beside from there on
# A cut from which to read slices that will come, and whether another one follows: (Manifest or None, bool)
AHEAD = b"a"
TAKE_OVER = b"t"  # (Manifest of the last version's last cut, as in PEERS): take over its state
FLUSH = b"f"  # hand what waits for a sink to it now; True: from now on, nothing waits for more
END = b"E"  # the last minimal time: store the rest, then send DONE
QUIT = b"Q"  # stop at once; True: and let the loop of the next version, or owner table, take over
PAUSE = b"U"  # read no elements until the next COMMITTED, and send PAUSED (stop the world)
# Workers to workers:
FRAME = b"F"  # a Frame
DEALT = b"d"  # a Dealt: it has dealt with frames of the other worker, which has an account of them
# On every link:
SYNC = (
    b"="  # None: the connection was made anew, and the number of this envelope shows what was lost
)
