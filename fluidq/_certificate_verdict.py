"""The verdict of a certificate: one of three, with its reasons in words."""

from typing import NamedTuple

from fluidq._certificate_hard import CONFIDENCE, Paired
from fluidq._certificate_requests import Requested
from fluidq._merit import BROKEN
from fluidq.tune import Relaxed

HOLDS = "holds"
RELAXED_ONLY = "holds only in the relaxed model"
NOT_BETTER = "not better than the default"
# The relaxed law promises an improvement where its best merit is below this share of the one at the start.
PROMISED = 0.99


class Replayed(NamedTuple):
    """A hard run on the tuning workload: what the search ranks by ("merit": cost or paid), and the SLO attainment."""

    merit: float
    attainment: float


def verdict(
    before: Replayed,
    after: Replayed,
    unseen: Paired,
    relaxed: Relaxed | None,
    requests: Requested | None,
    *,
    attainment: float | None = None,
    hard_start: float | None = None,
    same: bool = False,
) -> tuple[str, list[str]]:
    """One of `HOLDS`, `RELAXED_ONLY`, `NOT_BETTER`, with reasons; the rules are those of `fluidq.certificate`.

    `hard_start`: hard merit of the start on the draws of `relaxed.hard`, where that is not `before.merit`. `same`: the
    search kept the given policy.
    """
    tuned, said = _on_tuning(before, after, attainment, same)
    reasons = [said]
    kept = False
    if tuned:
        kept, said = _on_unseen(unseen, attainment)
        reasons.append(said)
    promise = _promise(before, relaxed, attainment, before.merit if hard_start is None else hard_start)
    if not (tuned and kept):
        if promise:
            return RELAXED_ONLY, [*reasons, promise]
        return NOT_BETTER, reasons
    worse = "" if requests is None else requests.worse(attainment)
    if worse:
        return RELAXED_ONLY, [*reasons, worse]
    if requests is not None:
        low, high = requests.cost.low, requests.cost.high
        said = "also cheaper" if high < 0 else "not told apart from the given policy"
        interval = f"difference {low:.3g} to {high:.3g} GPU-h"
        reasons.append(f"on requests it is {said} ({interval} in the sample)")
    return HOLDS, [*reasons, promise] if promise else reasons


def _on_tuning(before: Replayed, after: Replayed, attainment: float | None, same: bool) -> tuple[bool, str]:
    if same:
        return False, "the search found nothing better than the given policy on the hard law"
    what = "the hard cost" if attainment is None else "what is paid on the hard law"
    change = f"{what} goes from {before.merit:,.5g} to {after.merit:,.5g} GPU-h on the tuning workload"
    if not after.merit < before.merit:
        change += ": not lower"
    if attainment is None:
        return after.merit < before.merit, change
    if not after.attainment >= attainment:
        short = f"it attains {after.attainment:.2%} on the tuning workload, less than the {attainment:.2%} wanted"
        return False, short
    if not before.attainment >= attainment:
        won = f"it attains {after.attainment:.2%} on the tuning workload, the given policy {before.attainment:.2%}"
        return True, f"{won}; {attainment:.2%} is wanted"
    return after.merit < before.merit, f"{change}, both within the attainment of {attainment:.2%}"


def _on_unseen(unseen: Paired, attainment: float | None) -> tuple[bool, str]:
    d = unseen.difference
    where = f"on {unseen.draws} unseen draws"
    if attainment is not None:
        got, had = unseen.after["attainment"], unseen.before["attainment"]
        if not got >= attainment:
            return False, f"{where} it attains {got:.2%} on average, less than the {attainment:.2%} wanted"
        if not had >= attainment:
            return True, f"{where} it attains {got:.2%} on average, the given policy {had:.2%}"
    if unseen.draws == 1:
        return d.mean < 0, f"on one unseen draw the difference is {d.mean:.3g} GPU-h; one draw has no interval"
    interval = f"{d.low:.3g} to {d.high:.3g}"
    said = f"{where} the difference is {d.mean:.3g} GPU-h ({CONFIDENCE:.0%} interval {interval})"
    return bool(d.mean < 0 and d.high < 0), said if d.high < 0 else f"{said}, which reaches 0"


def _promise(before: Replayed, relaxed: Relaxed | None, attainment: float | None, hard_start: float) -> str:
    """In words, where the relaxed law promised what its point does not keep on the hard law; else ""."""
    if relaxed is None or not relaxed.after < PROMISED * relaxed.before:
        return ""
    broken = attainment is not None and relaxed.hard > 0.1 * BROKEN * max(hard_start, 1e-300)
    started_broken = attainment is not None and not before.attainment >= attainment
    better = not broken and (started_broken or relaxed.hard < hard_start)
    if better:
        return ""
    promised = f"the relaxed law at width {relaxed.width:.3g} promised {1 - relaxed.after / relaxed.before:.1%} less"
    if broken:
        return f"{promised}; on the hard law that point does not keep the attainment"
    return f"{promised}; on the hard law that point has {relaxed.hard:,.5g} GPU-h instead of {hard_start:,.5g}"
