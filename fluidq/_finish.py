"""The end of a search, on the hard law alone: CMA-ES from the best point that the gradient found.

Hard runs go many to a call and cost a hundredth of a gradient each, and whole workers leave small steps that no
gradient sees. The evolution strategy is that of the `cmaes` package (Hansen 2016).
"""

from typing import Any

import numpy as np
from cmaes import CMA

from fluidq._descent import Descent

POPULATION = 16


def finish(descent: Descent, origin: np.ndarray, bar: Any = None) -> None:
    """`settings.finish` generations around the best point, or around the start where none was better.

    Candidates are judged and win as those of the descent do; `descent.judged` goes on, a generation a step.
    """
    settings = descent.settings
    if not settings.finish:
        return
    mean = origin if descent.best is None else descent.best
    if len(mean) == 1:  # the package needs two dimensions; the second does nothing
        mean = np.append(mean, 0.0)
    search = CMA(mean=mean, sigma=settings.finish_sigma, seed=settings.seed % 2**32, population_size=POPULATION)
    for generation in range(settings.finish):
        points = np.stack([search.ask() for _ in range(POPULATION)])
        merits = descent.judge(points[:, : len(origin)], descent.step + generation + 1)
        # What is not finite, or loses on the workload itself, ranks last.
        worst = np.max(merits, where=np.isfinite(merits), initial=0.0)
        ranked = np.where(np.isfinite(merits), merits, 2.0 * worst + 1.0)
        search.tell([(point, float(value)) for point, value in zip(points, ranked, strict=True)])
        if bar is not None:
            bar.set_postfix_str(f"finishing, hard cost {descent.best_merit:.4g} GPU-h")
        if search.should_stop():
            return
