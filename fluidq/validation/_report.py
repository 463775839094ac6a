"""The report of a validation: figures for programs, tables for people."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq.validation._balance import CLASSES, Balance, balance_of
from fluidq.validation._leave_one_out import NEAR, Prediction, leave_one_out
from fluidq.validation._published import Check, finite, published_checks
from fluidq.validation._rows import Row, read_rows

# Errors of a predicted rate from which on a row is listed.
_LISTED = 0.15


@dataclass(frozen=True)
class Report:
    """What validation found, row by row; `str(report)` is for people, `to_dict()` for programs.

    `balances` and `predictions` hold a result for each of `rows`, or the reason why there is none.
    """

    file: str
    rows: tuple[Row, ...]
    balances: tuple[Balance | str, ...]
    predictions: tuple[Prediction | str, ...]

    @property
    def expected(self) -> list[tuple[Row, Balance]]:
        """Rows whose split was chosen in a way that lets one expect balance."""
        pairs = zip(self.rows, self.balances, strict=True)
        return [(row, found) for row, found in pairs if isinstance(found, Balance) and found.expected]

    @property
    def predicted(self) -> list[tuple[Row, Prediction]]:
        """Rows with a leave-one-out prediction."""
        pairs = zip(self.rows, self.predictions, strict=True)
        return [(row, found) for row, found in pairs if isinstance(found, Prediction)]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; None where there is no row to take a figure of, or a number is infinite."""
        return {
            "balance_expected": _balance_figures([found for _, found in self.expected]),
            "leave_one_out": _rate_figures([found for _, found in self.predicted]),
            "rows": [
                _row_figures(*parts) for parts in zip(self.rows, self.balances, self.predictions, strict=True)
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        parts = [
            f"{self.file}: {len(self.rows)} rows",
            self._balance_text(),
            self._failing_text(),
            self._rate_text(),
            self._published_text(published_checks()),
            self._unused_text(),
        ]
        return "\n\n".join(part for part in parts if part)

    def _balance_text(self) -> str:
        figures = _balance_figures([found for _, found in self.expected])
        lines = ["Balance, rows where it is to be expected (phi from the row's own rates, D01)"]
        if not self.expected:
            return f"{lines[0]}\n  no such row"
        lines.append(
            f"  {figures['rows']} rows: median |phi error| {figures['median_abs_phi_error']:.4f}, "
            f"{figures['within_one_worker']:.1%} within one prefill worker"
        )
        for kind in CLASSES:
            here = [found for row, found in self.expected if row.text("evidence_class") == kind]
            if here:
                part = _balance_figures(here)
                lines.append(
                    f"    {kind}  {part['rows']:>3} rows, median {part['median_abs_phi_error']:.4f}, "
                    f"{part['within_one_worker']:.1%} within one worker: {CLASSES[kind]}"
                )
        misses = [(row, found) for row, found in self.expected if not found.within_one]
        lines += [
            f"    miss: {row.name}: phi {b.phi:.3f}, chosen {b.phi_measured:.3f}; {b.workers:g} prefill workers, "
            f"ideal {b.workers_ideal:.2f}"
            for row, b in misses
        ]
        return "\n".join(lines)

    def _failing_text(self) -> str:
        pairs = zip(self.rows, self.balances, strict=True)
        here = [(row, found) for row, found in pairs if isinstance(found, Balance) and not found.expected]
        if not here:
            return ""
        lines = ["Balance, rows where it is not to be expected: the split was not chosen for this workload"]
        lines.append(f"  {'row':<34} {'chosen':>7} {'phi':>7}  {'balanced at OSL':>15}  {'OSL':>7}  why")
        for row, b in here:
            name = row.name if len(row.name) <= 34 else row.name[:33] + "…"
            osl = row.get("osl_tok")
            lines.append(
                f"  {name:<34} {b.phi_measured:>7.3f} {b.phi:>7.3f}  {b.balancing_osl:>15,.0f}  {osl or 0:>7,.0f}  "
                f"{row.text('ratio_selection') or 'no ratio_selection'}{'' if b.within_one else ', fails'}"
            )
        return "\n".join(lines)

    def _rate_text(self) -> str:
        title = "Request rate, each row from the other rows of its group (nothing measured at the row is used)"
        found = [prediction for _, prediction in self.predicted]
        if not found:
            return f"{title}\n  no row with enough others in its group"
        figures = _rate_figures(found)
        any_tpot = np.mean([p.split_share_any_tpot >= 1 - NEAR for p in found])
        rejected = [sum(p.rejected[i] for p in found) for i in range(4)]
        lines = [
            title,
            f"  {figures['rows']} rows: median |error| {figures['median_abs_error']:.1%}, "
            f"90th percentile {figures['p90_abs_error']:.1%}",
            f"  published split best or within {NEAR:.0%}, at no longer time per token: "
            f"{figures['split_optimal_or_within_2pct']:.1%}",
            f"    of the other splits of the same GPUs this test rejects {rejected[0]} of {rejected[1]} with more "
            f"prefill workers, {rejected[2]} of {rejected[3]} with fewer",
            f"    {any_tpot:.1%} are best or within {NEAR:.0%} where the time per token may grow too",
        ]
        lines += [
            f"    off: {row.name}: {p.request_rate:.4g} req/s against {p.measured:.4g} ({p.error:+.0%})"
            for row, p in self.predicted
            if abs(p.error) > _LISTED
        ]
        lines += [
            f"    not the best: {row.name}: {p.split_share:.1%} of the rate of the best split at that time per token"
            for row, p in self.predicted
            if not p.near_best
        ]
        return "\n".join(lines)

    def _published_text(self, checks: Sequence[Check]) -> str:
        lines = ["Published figures that need no table"]
        group = ""
        for check in checks:
            if check.group != group:
                group = check.group
                here = [c for c in checks if c.group == group]
                lines.append(f"  {group}: {sum(c.right for c in here)} of {len(here)} agree")
            mark = "  " if check.right else "x "
            lines.append(
                f"   {mark}{check.name}: {check.published:.4g} published, {check.predicted:.4g} ours ({check.words})"
            )
        return "\n".join(lines)

    def _unused_text(self) -> str:
        lines = []
        for title, results in (("balance", self.balances), ("request rate", self.predictions)):
            reasons = Counter(found for found in results if isinstance(found, str))
            if reasons:
                lines.append(f"Rows not used for the {title}")
                lines += [f"  {count:>4}  {reason}" for reason, count in reasons.most_common()]
        return "\n".join(lines)


def _balance_figures(found: Sequence[Balance]) -> dict[str, Any]:
    return {
        "rows": len(found),
        "median_abs_phi_error": float(np.median([abs(b.error) for b in found])) if found else None,
        "within_one_worker": float(np.mean([b.within_one for b in found])) if found else None,
    }


def _rate_figures(found: Sequence[Prediction]) -> dict[str, Any]:
    errors = [abs(p.error) for p in found]
    return {
        "rows": len(found),
        "median_abs_error": float(np.median(errors)) if found else None,
        "p90_abs_error": float(np.quantile(errors, 0.9)) if found else None,
        "split_optimal_or_within_2pct": float(np.mean([p.near_best for p in found])) if found else None,
    }


def _row_figures(row: Row, balance: Balance | str, rate: Prediction | str) -> dict[str, Any]:
    out: dict[str, Any] = {
        "row": row.name,
        "line": row.line,
        "evidence_class": row.text("evidence_class") or None,
        "ratio_selection": row.text("ratio_selection") or None,
        "balance_not_used": balance if isinstance(balance, str) else None,
        "leave_one_out_not_used": rate if isinstance(rate, str) else None,
    }
    if isinstance(balance, Balance):
        out |= {
            "balance_expected": balance.expected,
            "phi_measured": balance.phi_measured,
            "phi_predicted": balance.phi,
            "phi_error": balance.error,
            "prefill_workers": balance.workers,
            "prefill_workers_ideal": finite(balance.workers_ideal),
            "within_one_worker": balance.within_one,
            "balancing_osl_tok": finite(balance.balancing_osl),
            "slower_pool": balance.binds,
        }
    if isinstance(rate, Prediction):
        out |= {
            "request_rate_measured": rate.measured,
            "request_rate_predicted": rate.request_rate,
            "request_rate_error": rate.error,
            "tpot_predicted_s": rate.tpot,
            "batch_per_gpu_predicted": rate.batch,
            "prefill_load_predicted": rate.prefill_load,
            "siblings": rate.siblings,
            "split_share_of_best": rate.split_share,
            "split_share_of_best_any_tpot": rate.split_share_any_tpot,
            "best_workers_any_tpot": list(rate.best_workers),
        }
    return out


def validate(path: str | os.PathLike[str], reference: str | os.PathLike[str] | None = None) -> Report:
    """Validate the balance and the closed loop on a table of published deployments.

    Args:
        path: CSV file; columns are found by name, those that are missing make rows unusable, with the reason.
        reference: a second file whose rows the leave-one-out test may learn from; they are not judged.

    Raises:
        InputError: a file that cannot be read, naming file and line.
    """
    rows = read_rows(path)
    learned = [] if reference is None else read_rows(reference)
    return Report(
        file=os.fspath(path),
        rows=tuple(rows),
        balances=tuple(balance_of(row) for row in rows),
        predictions=tuple(leave_one_out(rows, learned)),
    )
