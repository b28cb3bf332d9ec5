"""Whose text to learn from: an author whose completions this policy mostly finds absurd is not believed in the others either.

Counts by author what the guard of `corrections.py` found, over the last updates. Knows neither texts nor rewards.
"""

import math

from rl_swarm.errors import CheckpointError

KEPT = 0.95  # share of the evidence about an author that is left when there is new: about twenty such updates count
KEPT_OF_ABSENT = 0.99  # likewise of an author that was not read
LEAST_JUDGED = 8.0  # completions, before an author can lose trust
LEAST_PLAUSIBLE = 0.5  # of them; an honest peer's are 0.9 and more, those of the attacks in `checks/poison.py` 0.06 and less
FORGOTTEN = 0.01  # completions: evidence below that is dropped
MOST_AUTHORS = 1000  # that are remembered, those with the most evidence
MOST_JUDGED = 1e8  # that a checkpoint may claim: J and G at their limits, for as long as is remembered

Evidence = dict[str, tuple[float, float]]  # by author: completions judged, and those of them that were plausible


class Trust:
    """Authors are trusted until there is evidence against them. Evidence of an update counts from the next one on, so neither the
    order nor the cut of a batch matters."""

    def __init__(self) -> None:
        self.evidence: Evidence = {}
        self._new: Evidence = {}

    def begin(self) -> None:
        """Begin an update, or begin it again."""
        self._new = {}

    def note(self, author: str, plausible: bool) -> None:
        judged, found = self._new.get(author, (0.0, 0.0))
        self._new[author] = (judged + 1, found + plausible)

    def finish(self) -> None:
        merged = {}
        for author in self.evidence.keys() | self._new.keys():
            (before, good), (judged, found) = self.evidence.get(author, (0.0, 0.0)), self._new.get(author, (0.0, 0.0))
            kept = KEPT if judged else KEPT_OF_ABSENT
            merged[author] = (kept * before + judged, kept * good + found)
        most = sorted(merged, key=lambda author: (-merged[author][0], author))[:MOST_AUTHORS]
        self.evidence = {author: merged[author] for author in most if merged[author][0] >= FORGOTTEN}
        self._new = {}

    def trusted(self, author: str) -> bool:
        judged, plausible = self.evidence.get(author, (0.0, 0.0))
        return judged < LEAST_JUDGED or plausible >= LEAST_PLAUSIBLE * judged


def check_evidence(saved: object) -> Evidence:
    """Return the evidence of a checkpoint. Raise CheckpointError if it is none."""
    if not isinstance(saved, dict) or len(saved) > MOST_AUTHORS:
        raise CheckpointError("its evidence about authors is not by name")
    for author, counts in saved.items():
        if not isinstance(author, str) or type(counts) is not tuple or [type(each) for each in counts] != [float, float]:
            raise CheckpointError("its evidence about an author is not two numbers")
        judged, plausible = counts
        if not math.isfinite(judged) or not 0 <= plausible <= judged <= MOST_JUDGED:
            raise CheckpointError(f"its evidence about an author is impossible: {plausible:g} of {judged:g} completions")
    return dict(saved)
