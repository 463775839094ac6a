"""Whole workers, searched exactly: GPUs' worth of work that a fleet keeps at a given split, and at the worst one."""

from fractions import Fraction


def kept(fleet: int, g_P: int, g_D: int, prefill: int, decode: int) -> Fraction:
    """The best efficiency times the fleet, for a balance ratio of prefill / (prefill + decode), both above 0."""
    best = 0
    for n_P in range(g_P, fleet - g_D + 1, g_P):
        n_D = (fleet - n_P) // g_D * g_D
        best = max(best, min(n_P * decode, n_D * prefill))
    return Fraction(best * (prefill + decode), prefill * decode)


def least_kept_searched(fleet: int, g_P: int, g_D: int) -> Fraction:
    """The infimum of `kept` over all balance ratios.

    Each plan keeps min(n_P / phi, n_D / (1 - phi)): one branch falls, the other rises. So the best plan's least value
    is met where a falling branch crosses a rising one, at phi = n_P / (n_P + n_D) for workers of any two plans, or is
    approached at phi -> 0 or 1.
    """
    ends = [max((fleet - g_P) // g_D * g_D, 0), max((fleet - g_D) // g_P * g_P, 0)]
    return min(
        [Fraction(min(ends))]
        + [
            kept(fleet, g_P, g_D, prefill, decode)
            for prefill in range(g_P, fleet + 1, g_P)
            for decode in range(g_D, fleet + 1, g_D)
        ]
    )


def least_kept(fleet: int, g_P: int, g_D: int) -> int:
    """The same in closed form: the least i g_P + j g_D at which one more worker of both kinds does not fit."""
    found = []
    for i in range(fleet // g_P + 1):
        j = max((fleet - (i + 1) * g_P) // g_D, 0)  # (i + 1) g_P + (j + 1) g_D exceeds the fleet
        found.append(i * g_P + j * g_D)
    return min(found)


def combines(total: int, g_P: int, g_D: int) -> bool:
    """Whether total = i g_P + j g_D for some i, j >= 0."""
    return any((total - i * g_P) % g_D == 0 for i in range(total // g_P + 1)) if total >= 0 else False
