"""The formal model: what exactly-once, at-least-once and at-most-once mean, executable for any flow.

After Trofimov, Kuralenok, Marshalkin and Novikov, "Delivery, consistency, and determinism", section
III. `judge` says which of their guarantees a run kept, from what can be seen of it: what went in,
what came out, and the failures between.

**The paper's terms.** A system is (Gamma, D, F): elements, a relation D of transformations, and a
recovery function F. It has inputs A, outputs B and a working set W (elements in flight, states
included). One thing happens at a time: an input joins A and W, an output moves from W to B, a
transformation replaces a part of W by what D makes of it, or a failure happens and W becomes
F(A, B). A and B are all that an observer sees. F* is the recovery that restores W exactly: with it
nobody can tell that there was a failure.

=============  ===================================================  ================================
definition     in the paper                                         here
=============  ===================================================  ================================
consistent     5: P(b | A, B, F*) > 0. After inputs A and outputs   the output is the next one that
               B the output b is possible without failures          the reference runner has
exactly-once   6: every output b is consistent                      the output is ``run(flow, A)``
at-most-once   7: there is a part A0 of A with which every output   the output is ``run(flow, A0)``:
               is consistent                                        some elements never entered
at-least-once  8: there is an A* of elements of A, some of them     the output is that of the
               several times, with which every output is            elements of A, some of which
               consistent                                           entered again later
=============  ===================================================  ================================

A flow here is deterministic (definition 10): given A and the outputs so far there is one next
output, that of the reference. So exactly-once needs no search. It is equality with the reference,
of each partition by itself, because partitions are released independently and nobody sees which of
two partitions was first.

The other two ask whether some other input *explains* the output, "without failures, but with the
modification of the input". Their fine print decides many cases:

- *At-most-once is atomic.* A lost element is lost with all that it causes: its outputs and its mark
  on the state. An output that is missing while its state shows later is no loss of an element.
- *At-least-once does not go back.* A repeated element meets the state as it is by then. For a flow
  that concatenates, ``a ab abc abcb`` repeats ``b``; ``a ab abc ab abc`` is what a system gives that
  restored its state and delivered again, and no input gives it: once ``abc`` is out, ``ab`` is
  inconsistent. Only where no state tells the two apart (a flow without state, or one that an element
  changes once, like `distinct`) is a repeated delivery at-least-once. `Verdict.delivery` says when an
  output is that of the reference with parts delivered again, or missing, whatever its guarantee.
- *Not both.* An output that lost one element and repeated another keeps none of them.
- *A copy of an element is the element*: same payload, same time, processed where it enters again.
  First entries are in the order of global times; a copy comes anywhere behind the first. What a copy
  schedules for a time that is over happens at once, before the next element.

The definitions speak of what has been output, not of what is still to come: by them a system that
outputs nothing keeps everything. `judge` takes a run to be finished unless told otherwise, and then
asks for the whole output of A, A0 or A*. With ``finished=False`` a beginning is enough.

**Failures.** The definitions do not mention when failures happened, and `judge` does not need to
know. But without any, F is never called and the system is the one with F*: only exactly-once is
left, and whatever else came out did not come from such a system (a function that is not pure, or a
bug). And each recovery enters an element again at most once, so the number of failures bounds the
copies. Not knowing, ``failures=None``, allows any number.

**Search, and its cost.** An explanation is a walk over the elements: from one to the next, with
jumps. At-most-once jumps forward, over what was lost; at-least-once jumps back, to what is repeated
from there on, and forward to where it had been. The reference follows the walk, every output is held
against the real one at once, and the first that differs ends that walk. The search goes back and
tries another jump, in two rounds:

1. where real losses and repetitions are: a jump at the element whose output differs, or among the
   silent ones just before it. Contiguous stretches, few or many, are found in about as many steps as
   there are elements, times the length of a stretch;
2. everywhere, with one jump, two, four, and so on, until no walk was given up for the number of its
   jumps. Then all explanations have been tried, and there is none.

Elements that change nothing (no output, nothing scheduled, no state) are neither dropped nor
repeated, as that changes nothing either. The second round is exponential at worst, so the search has
a bound, ``effort``, in elements entered. Beyond it the verdict is *undecided*, never a guess.
"""

from emberflow.guarantees.inputs import LoggedElements
from emberflow.guarantees.judgement import EFFORT, judge
from emberflow.guarantees.verdict import Entered, Giveaway, Guarantee, Verdict

__all__ = ["EFFORT", "Entered", "Giveaway", "Guarantee", "LoggedElements", "Verdict", "judge"]
