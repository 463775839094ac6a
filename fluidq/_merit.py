"""What a search minimises, from the outcomes of its draws: a cost or a constrained one; its mean or worst share."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from fluidq._rows import OUTCOMES

COST, PAID, ATTAINED = range(len(OUTCOMES))
# How a penalty grows where a constraint does not get better between two judgements.
STIFFER = 3.0
MOST_STIFF = 1e4
# A candidate that breaks the constraint ranks after every one that keeps it.
BROKEN = 1e3


class Duals(NamedTuple):
    """Multiplier and stiffness of the constraint, per start; both (starts,)."""

    multiplier: np.ndarray
    stiffness: np.ndarray


class Merit(NamedTuple):
    """The merit of outcomes (starts, draws, outcomes); lower is better.

    Without `attainment`: the cost. With it: what is paid, subject to SLO attainment >= `attainment`, by the augmented
    Lagrangian J = paid + scale ((m + r g)+^2 - m^2) / (2 r), g = attainment - attained, m and r the duals.
    `share` of the draws, the worst, count: 1 is the mean, less is the conditional value at risk.
    """

    attainment: float | None
    share: float
    scale: float

    def duals(self, starts: int) -> Duals:
        """Where they start."""
        return Duals(np.zeros(starts), np.full(starts, 10.0))

    def __call__(self, outcomes: np.ndarray, duals: Duals) -> tuple[np.ndarray, np.ndarray]:
        """Merits (starts,), and their derivatives with respect to the outcomes."""
        weights = np.zeros_like(outcomes)
        kind = COST if self.attainment is None else PAID
        share = self._worst(outcomes[..., kind])
        weights[..., kind] = share
        merit = np.sum(share * outcomes[..., kind], axis=1)
        if self.attainment is None:
            return merit, weights
        m, r = duals
        lowest, gap = self._gap(outcomes)
        push = np.maximum(m + r * gap, 0.0)
        weights[..., ATTAINED] = -self.scale * push[:, None] * lowest
        return merit + self.scale * (push**2 - m**2) / (2.0 * r), weights

    def hard(self, outcomes: np.ndarray) -> Float64[np.ndarray, " starts"]:
        """What hard outcomes are ranked by: the cost, or what is paid; after all others where the constraint fails."""
        kind = COST if self.attainment is None else PAID
        merit = np.sum(self._worst(outcomes[..., kind]) * outcomes[..., kind], axis=1)
        if self.attainment is None:
            return merit
        gap = self._gap(outcomes)[1]
        return np.where(gap > 0, BROKEN * self.scale * (1.0 + gap), merit)

    def where_broken(self, own: np.ndarray, merits: np.ndarray) -> np.ndarray:
        """The merits, and in place of one whose own workloads break the constraint the worse of the two."""
        if self.attainment is None:
            return merits
        return np.where(own >= BROKEN * self.scale, np.maximum(own, merits), merits)

    def tightened(self, duals: Duals, outcomes: np.ndarray, before: np.ndarray | None) -> tuple[Duals, np.ndarray]:
        """The duals after outcomes at the present points, and their gaps; stiffer where a gap has not halved."""
        if self.attainment is None:
            return duals, np.zeros(len(outcomes))
        gap = self._gap(outcomes)[1]
        m = np.maximum(duals.multiplier + duals.stiffness * gap, 0.0)
        stuck = (gap > 0) & (before is not None) & (gap > 0.5 * (np.inf if before is None else before))
        r = np.where(stuck, np.minimum(STIFFER * duals.stiffness, MOST_STIFF), duals.stiffness)
        return Duals(m, r), gap

    def _gap(self, outcomes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the draws with the lowest attainment, and what their mean lacks."""
        lowest = self._worst(-outcomes[..., ATTAINED])
        assert self.attainment is not None
        return lowest, self.attainment - np.sum(lowest * outcomes[..., ATTAINED], axis=1)

    def _worst(self, losses: np.ndarray) -> np.ndarray:
        """Weights of the mean over the `share` of largest losses, per start."""
        draws = losses.shape[1]
        room = self.share * draws
        rank = np.argsort(np.argsort(-losses, axis=1, kind="stable"), axis=1, kind="stable")
        return np.clip(room - rank, 0.0, 1.0) / room
