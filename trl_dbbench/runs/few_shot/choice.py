"""Ranking of examples for a task: by similar words or skills, the latest first, or at random."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from trl_dbbench.runs.few_shot.memory import Example, Memory, Query


class BM25:
    r"""Okapi BM25: scores of documents for a query, by common words.

    $$ \sum_{t \in q} \ln\left(1 + \frac{N - n_t + 0.5}{n_t + 0.5}\right)
       \frac{f_{t,d} (k_1 + 1)}{f_{t,d} + k_1 (1 - b + b |d| / \overline{|d|})} $$

    with N documents, n_t of them with the word t, which occurs f_{t,d} times among the |d| words of d
    (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", section 3.4, with
    the logarithm that never falls below 0, as in Lucene).

    Args:
        documents: N lists of words.
    """

    def __init__(self, documents: Sequence[Sequence[str]], k1: float = 1.2, b: float = 0.75):
        lengths = np.array([len(words) for words in documents], dtype=float)
        mean = lengths.mean() if lengths.any() else 1.0
        places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, words in enumerate(documents):
            for word, count in Counter(words).items():
                places[word].append((number, count))
        self._size = len(documents)
        self._weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # word -> its documents, and its weights
        for word, found in places.items():
            where, counts = np.array(found).T
            rarity = np.log1p((self._size - len(found) + 0.5) / (len(found) + 0.5))
            saturation = k1 * (1 - b + b * lengths[where] / mean)
            self._weights[word] = where, rarity * counts * (k1 + 1) / (counts + saturation)

    def scores(self, query: Iterable[str]) -> np.ndarray:
        """Return scores (N,), 0 for documents with none of the words. Repeated words count once."""
        scores = np.zeros(self._size)
        for word in dict.fromkeys(query):
            if word in self._weights:
                where, weights = self._weights[word]
                scores[where] += weights
        return scores


Scores = Callable[[Query], np.ndarray]
"""Function from a task to scores (N,): how well each of N examples fits it."""


def _by_words(examples: Sequence[Example]) -> Scores:
    index = BM25([example.query.terms for example in examples])
    return lambda query: index.scores(query.terms)


def _by_skills(examples: Sequence[Example]) -> Scores:
    """Score by the Jaccard index of two tasks' skills."""
    skills = [example.query.skills for example in examples]
    return lambda query: np.array(
        [len(query.skills & each) / (len(query.skills | each) or 1) for each in skills]
    )


WAYS: dict[str, Callable[[Sequence[Example]], Scores]] = {
    "bm25": _by_words,
    "skill": _by_skills,
    "latest": lambda examples: lambda query: np.arange(len(examples)),  # LifelongAgentBench's replay
    "random": lambda examples: lambda query: np.zeros(len(examples)),
}


class Ranking:
    """Ranking of a memory's examples by one of `WAYS`, prepared again when the memory has changed."""

    def __init__(self, memory: Memory, by: str):
        self._memory, self._way, self._changes = memory, WAYS[by], -1

    def __call__(self, query: Query, random: np.random.Generator) -> list[Example]:
        """Return all examples, the best one first; ties are in random order."""
        if self._changes != self._memory.changes:
            self._changes, self._examples = self._memory.changes, list(self._memory)
            self._scores = self._way(self._examples)
        order = random.permutation(len(self._examples))
        return [self._examples[i] for i in order[np.argsort(-self._scores(query)[order], kind="stable")]]
