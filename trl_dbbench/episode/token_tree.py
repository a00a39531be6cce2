"""Token trees: the tokens of an episode whose turns do not all continue one another.

If the history is rewritten, as by a template that drops earlier thoughts, the agent's next turn does not
follow the tokens that it wrote. The episode is then several sequences. They begin alike, so the tokens are a
tree: each is kept once, with the place of the token that it follows:

```
place      0  1   2        3    4    5   6     7       8
token      p  ?   <think>  SQL  end  ->  p ?   SQL     end      (turn 2 reads the SQL alone)
follows   -1  0   1        2    3    .   (0 1) 1       7
```

Sampled tokens are never merged with others: two samples after the same tokens stay separate.
"""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = -1
"""Place before the first token of a sequence that has nothing in common with earlier ones."""


class TokenTree:
    """A tree of tokens, filled turn by turn.

    Attributes:
        ids: the tokens in the order in which they were added, the first prompt's first.
        follows: the place in `ids` of the token before each, or `NOTHING`.
        place: the place of the last token that was read or written.
    """

    def __init__(self, prompt_ids: Sequence[int]):
        self.ids: list[int] = []
        self.follows: list[int] = []
        self._next: dict[tuple[int, int], int] = {}
        self.place = self.add(prompt_ids, NOTHING)

    def find(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return how many of these ids are a known path from the root, and the place of the last of them."""
        place = NOTHING
        for count, id in enumerate(ids):
            following = self._next.get((place, id))
            if following is None:
                return count, place
            place = following
        return len(ids), place

    def read(self, ids: Sequence[int]) -> tuple[list[int], int | None]:
        """Add the ids that the next turn is sampled after.

        Returns:
            The ids that are new, and the place of the token before them in the form of `Turn.follows`.
        """
        known, place = self.find(ids)
        follows = None if place == len(self.ids) - 1 else place
        new = list(ids[known:])
        self.place = self.add(new, place)
        return new, follows

    def write(self, ids: Sequence[int]) -> None:
        """Add the ids that were sampled after the last token."""
        self.place = self.add(ids, self.place)

    def add(self, ids: Sequence[int], after: int) -> int:
        """Append ids that follow the token at `after`; return the place of the last."""
        for id in ids:
            self._next.setdefault((after, id), len(self.ids))
            self.ids.append(id)
            self.follows.append(after)
            after = len(self.ids) - 1
        return after


def paths(follows: Sequence[int]) -> list[list[int]]:
    """Return the places of each sequence, from its first token to its last; a sequence ends in a leaf."""
    inner = set(follows)
    found = []
    for leaf in (place for place in range(len(follows)) if place not in inner):
        path = []
        place = leaf
        while place != NOTHING:
            path.append(place)
            place = follows[place]
        found.append(path[::-1])
    return found
