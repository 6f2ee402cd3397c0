"""The formal model: executable definitions of exactly-once, at-least-once and at-most-once, for any
flow.

After Trofimov, Kuralenok, Marshalkin and Novikov, "Delivery, consistency, and determinism", section
III. `judge` says which of their guarantees a run kept, from what an observer sees of it: the inputs,
the outputs, and the failures between.

**The paper's terms.** A system is (Gamma, D, F): elements, a relation D of transformations, and a
recovery function F. It has inputs A, outputs B and a working set W (elements in flight, states
included). It takes one step at a time: an input joins A and W, an output moves from W to B, D
transforms a part of W, or a failure happens and W becomes F(A, B). An observer sees only A and B. F*
is the recovery that restores W exactly: with it an observer cannot tell that there was a failure.

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
for each partition by itself: barriers release partitions independently, so an observer cannot tell
which of two partitions was first.

The other two ask whether some other input *explains* the output, "without failures, but with the
modification of the input". Their fine print decides many cases:

- *At-most-once is atomic.* An element is lost with all its effects: its outputs and its change of the
  state. If an output is missing and a later output shows its effect on the state, the element was
  not lost.
- *At-least-once does not go back.* A repeated element meets the state as it is by then. For a flow
  that concatenates, ``a ab abc abcb`` repeats ``b``. The output ``a ab abc ab abc`` comes from a
  system that restored its state and delivered again, and no input gives it: after ``abc``, ``ab`` is
  inconsistent. A repeated delivery is at-least-once only where no state tells the two apart (a flow
  without state, or one whose state an element changes once, like `distinct`). `Verdict.delivery`
  says when an output is that of the reference with parts delivered again, or missing, whatever its
  guarantee.
- *Not both.* An output that lost one element and repeated another keeps none of the guarantees.
- *A copy of an element is the element*: same payload, same time, processed where it enters again.
  First entries are in the order of global times; a copy comes anywhere behind the first. If a copy
  schedules an item for a time that has passed, the item is processed at once, before the next
  element.

The definitions are about the output so far: by them a system that outputs nothing keeps every
guarantee. By default `judge` takes a run to be finished, and expects the whole output of A, A0 or A*.
With ``finished=False`` it accepts a prefix.

**Failures.** The definitions do not mention when failures happened, and `judge` does not need to
know. But without any, F is never called and the system is the one with F*: only exactly-once is
left, and any other output did not come from such a system (a function is not pure, or there is a
bug). And each recovery enters an element again at most once, so the number of failures bounds the
copies. ``failures=None``, unknown, allows any number.

**Search, and its cost.** An explanation is a walk over the elements: from one to the next, with
jumps. At-most-once jumps forward, over lost elements; at-least-once jumps back, to repeat elements
from there on, and forward again to where it had been. The reference follows the walk and compares
every output with the real one at once; the first difference ends the walk. The search then
backtracks and tries another jump, in two rounds:

1. where real losses and repetitions are: a jump at the element whose output differs, or among the
   silent ones just before it. This finds contiguous stretches, few or many, in about as many steps
   as there are elements, times the length of a stretch;
2. everywhere, with at most one jump, then two, four, and so on, until no walk reached that bound.
   Then all explanations have been tried, and there is none.

The search neither drops nor repeats elements that change nothing (no output, nothing scheduled, no
state), as the result would be the same. The second round is exponential at worst, so ``effort``
bounds the number of elements entered. Beyond it the verdict is *undecided*, never a guess.
"""

from emberflow.guarantees.inputs import LoggedElements
from emberflow.guarantees.judgement import EFFORT, judge
from emberflow.guarantees.verdict import Entered, Giveaway, Guarantee, Verdict

__all__ = ["EFFORT", "Entered", "Giveaway", "Guarantee", "LoggedElements", "Verdict", "judge"]
