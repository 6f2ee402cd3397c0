"""An inverted index that follows its documents: every new version gives the changes of the index.

A search engine keeps, for each word, the list of documents that contain it. When a document is
edited, nobody wants to build the index again; what is wanted is a *change record* for each word
whose count in that document is another one now, also for words that are gone.

Two groupings do it, and neither needs a database:

- by document, of window 2: it pairs each version with the one before, and a `flat_map` finds what
  differs between the two. This is how a word that vanished is noticed.
- by word: a `fold`, whose accumulator is the word's posting list. It knows the count before the
  change, and in how many documents the word occurs after it.

The order matters. If version 3 overtook version 2 on the way to a worker, the index would stay wrong
for good. Emberflow's output is that of the one order, so it can't happen, on any number of workers.

    $ python examples/inverted_index.py
    pets v1: +cat, +dog
    farm v1: +dog, +hen
    pets v2: -cat, dog 1 to 2
    farm v2: +cat, -dog

    cat  farm (1)
    dog  pets (2)
    hen  farm (1)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from random import Random
from typing import NamedTuple

import emberflow as ef


class Document(NamedTuple):
    id: str
    version: int
    text: str


class Posting(NamedTuple):
    """A document's entry in the list of a word. With no occurrences it takes the entry out."""

    word: str
    document: str
    version: int
    occurrences: int


class Change(NamedTuple):
    """A change record: what a version of a document changed in the list of a word."""

    word: str
    document: str
    version: int
    before: int
    after: int
    documents: int  # in how many the word occurs now

    def __str__(self) -> str:
        if not self.before:
            return f"+{self.word}"
        if not self.after:
            return f"-{self.word}"
        return f"{self.word} {self.before} to {self.after}"


class PostingList(NamedTuple):
    """All postings of a word in the order of documents, and the change that led to this list.

    A list is a value: an update makes another one. A tuple is copied with every update, which a few
    thousand documents don't mind. A list that only ever grows would be an `ef.PersistentList`.
    """

    postings: tuple[Posting, ...] = ()
    change: Change | None = None

    def updated(self, new: Posting) -> PostingList:
        place = bisect_left(self.postings, new.document, key=lambda posting: posting.document)
        old = self.postings[place : place + 1]
        if old and old[0].document != new.document:
            old = ()
        postings = (
            *self.postings[:place],
            *([new] if new.occurrences else []),
            *self.postings[place + len(old) :],
        )
        before = old[0].occurrences if old else 0
        change = Change(new.word, new.document, new.version, before, new.occurrences, len(postings))
        return PostingList(postings, change)


def differences(versions: tuple[Document, ...]) -> list[Posting]:
    """From (version,) or (version before, version) to a posting for each word that differs.

    >>> differences((Document("pets", 1, "cat dog"), Document("pets", 2, "dog dog")))
    [Posting(word='cat', document='pets', version=2, occurrences=0),
     Posting(word='dog', document='pets', version=2, occurrences=2)]
    """
    *previous, current = versions
    before = Counter(previous[0].text.split() if previous else [])
    after = Counter(current.text.split())
    return [
        Posting(word, current.id, current.version, after[word])
        # Sorted: the order of a set of strings differs from process to process, and the order of
        # the output would too.
        for word in sorted(before.keys() | after.keys())
        if before[word] != after[word]
    ]


flow = ef.Flow("inverted-index")
(
    flow.front("docs")
    .key_by(lambda document: document.id)
    .group(window=2, name="versions")
    .flat_map(differences, name="differences")
    .key_by(lambda posting: posting.word)
    .fold(initial=PostingList(), combine=PostingList.updated, name="index")
    .map(lambda posting_list: posting_list.change, name="latest change")
    .sink("changes")
)


Index = dict[str, dict[str, int]]  # word, then document, to count


def applied(changes: Iterable[Change]) -> Index:
    """The index that the change records build. Whoever follows them keeps it so."""
    index: Index = {}
    for change in changes:
        counts = index.setdefault(change.word, {})
        if counts.get(change.document, 0) != change.before:
            raise ValueError(f"the index has another count than the one before {change!r}")
        counts[change.document] = change.after
        if not change.after:
            del counts[change.document]
        if not counts:
            del index[change.word]
    return index


def built(documents: Iterable[Document]) -> Index:
    """The index of the last versions, built at once and without a flow: what must come out."""
    index: Index = {}
    for document in {document.id: document for document in documents}.values():
        for word, count in Counter(document.text.split()).items():
            index.setdefault(word, {})[document.id] = count
    return index


DOCUMENTS = [
    Document("pets", 1, "cat dog"),
    Document("farm", 1, "dog hen"),
    Document("pets", 2, "dog dog"),
    Document("farm", 2, "hen cat"),
]


def main() -> None:
    changes: list[Change] = ef.run(flow, docs=DOCUMENTS)["changes"]
    for (document, version), records in groupby(changes, key=lambda c: (c.document, c.version)):
        print(f"{document} v{version}:", ", ".join(map(str, records)))
    print()
    for word, counts in sorted(applied(changes).items()):
        print(f"{word} ", ", ".join(f"{document} ({count})" for document, count in counts.items()))


# For the demonstration and the tests: text to index, as much as you like.

VOCABULARY_SIZE = 3_000
VERSIONS_MAX = 6


def generated_documents(n: int, words_per_document: int, seed: int) -> Iterator[Document]:
    """``n`` documents of made-up text in one to six versions each, edited in turns.

    The same seed gives the same documents. Words are as frequent as Zipf's law has it: the second
    one half as often as the first, the third one a third.

    >>> for document in generated_documents(2, words_per_document=5, seed=3):
    ...     print(*document)
    doc-0001 1 bage hote ge ki fi
    doc-0000 1 fisu di ki fe retu
    doc-0001 2 bage ge ki fi
    doc-0001 3 bage ge ki fi
    doc-0001 4 jajo ge ki fi
    doc-0000 2 fisu di ki fiji retu
    doc-0001 5 jajo ge ki faku fi
    """
    random = Random(seed)
    vocabulary = [made_up_word(rank) for rank in range(VOCABULARY_SIZE)]
    weights = list(accumulate(1 / (rank + 1) for rank in range(VOCABULARY_SIZE)))

    def words(count: int) -> list[str]:
        return random.choices(vocabulary, cum_weights=weights, k=count)

    turns = [number for number in range(n) for _ in range(random.randint(1, VERSIONS_MAX))]
    random.shuffle(turns)
    texts: dict[int, list[str]] = {}
    versions: Counter[int] = Counter()
    for number in turns:
        if number not in texts:
            texts[number] = words(words_per_document)
        else:
            # An edit: other words replace up to a quarter of the text.
            text = texts[number]
            longest = max(1, words_per_document // 4)
            start = random.randrange(max(1, len(text)))
            text[start : start + random.randint(0, longest)] = words(random.randint(0, longest))
        versions[number] += 1
        yield Document(f"doc-{number:04}", versions[number], " ".join(texts[number]))


def made_up_word(rank: int) -> str:
    """A word for each rank, the frequent ones short, as in any language.

    >>> [made_up_word(rank) for rank in (0, 1, 69, 70, 2999)]
    ['ba', 'de', 'tu', 'baba', 'tegu']
    """
    consonants, vowels = "bdfghjklmnprst", "aeiou"  # 14 and 5 have no common divisor: 70 pairs
    rank, place = divmod(rank, len(consonants) * len(vowels))
    syllable = consonants[place % len(consonants)] + vowels[place % len(vowels)]
    return made_up_word(rank - 1) + syllable if rank else syllable


if __name__ == "__main__":
    main()
