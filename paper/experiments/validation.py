"""The balance and the request rate against a table of published deployments."""

from typing import Any

from fluidq.validation import validate
from paper.measure import Experiment, data_folder

TABLE = "deployments/deployments.csv"


def compute() -> dict[str, Any]:
    """The figures of `fluidq validate`, and the rows that the paper draws."""
    report = validate(data_folder() / TABLE)
    told = report.to_dict()
    judged = [row for row in told["rows"] if "phi_predicted" in row]
    rates = [row for row in told["rows"] if "request_rate_predicted" in row]
    off = [row["request_rate_error"] for row in rates]
    return {
        "rows": len(report.rows),
        "balance": told["balance_expected"],
        "rate": told["leave_one_out"],
        "worst rate": max(off, key=abs),
        "over a quarter": sum(abs(x) > 0.25 for x in off),
        "expected": [[r["phi_measured"], r["phi_predicted"]] for r in judged if r["balance_expected"]],
        "not expected": [[r["phi_measured"], r["phi_predicted"]] for r in judged if not r["balance_expected"]],
        "misses": sum(not row["within_one_worker"] for row in judged if row["balance_expected"]),
        "fails elsewhere": sum(not row["within_one_worker"] for row in judged if not row["balance_expected"]),
        "any time per token": sum(row["split_share_of_best_any_tpot"] >= 0.98 for row in rates) / len(rates),
    }


EXPERIMENT = Experiment("validation", "fluidq validate on published deployments", __name__, compute, (TABLE,))
