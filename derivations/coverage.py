"""Which of the theory's published checks V01 to V23 are there, and how they come out."""

from collections.abc import Iterable
from typing import Any

from derivations.core import CheckResult

CHECKS = {
    "V01": "DeepSeek: nodes of the fleet",
    "V02": "DeepSeek: daily cost and revenue",
    "V03": "P/D planning on H200: rate, ratio, instances, capacity",
    "V04": "GLM-5.2 on B200: flow and link margin",
    "V05": "GLM-5.2: KV bytes per token",
    "V06": "three models with latent attention: KV bytes per token",
    "V07": "OPT-66B: KV of a prompt, and its traffic",
    "V08": "bandwidths where moving a prefix meets computing it",
    "V09": "Splitwise: split of 40 machines",
    "V10": "Azure traces: medians",
    "V11": "DeepEP: low-latency bandwidths",
    "V12": "the article's shock map",
    "V13": "cold starts: sums of their phases",
    "V14": "KV recovered by a smaller prefill chunk",
    "V15": "attention and FFN apart: mean field and best ratio",
    "V16": "MegaScale-Infer: micro-batches",
    "V17": "SARATHI: prefix read again",
    "V18": "DistServe: crossovers of parallelism",
    "V19": "derivatives of a path, counted",
    "V20": "limit cycle of a relay with delay",
    "V21": "largest gain of a sampled loop with delay",
    "V22": "Mooncake trace: statistics",
    "V23": "Step-3 against DeepSeek-V3",
}


def missing(results: Iterable[CheckResult]) -> list[str]:
    """The checks of the theory that no derivation carries."""
    there = {r.check.covers for r in results}
    return [number for number in CHECKS if number not in there]


def by_number(results: Iterable[CheckResult]) -> dict[str, dict[str, Any]]:
    """For each check that is there: its figures counted by verdict, and the largest error with its figure."""
    found: dict[str, list[CheckResult]] = {number: [] for number in CHECKS}
    for result in results:
        found.setdefault(result.check.covers, []).append(result)
    return {number: _summary(number, parts) for number, parts in found.items() if parts}


def _summary(number: str, parts: list[CheckResult]) -> dict[str, Any]:
    worst = max(parts, key=lambda r: abs(r.relative_error))
    return {
        "words": CHECKS.get(number, ""),
        "figures": len(parts),
        **{verdict: sum(r.verdict == verdict for r in parts) for verdict in ("hit", "miss", "soft")},
        "worst_error": worst.relative_error,
        "worst": worst.check.id,
        "as_declared": all(r.as_declared for r in parts),
        "reasons": list(dict.fromkeys(r.check.reason for r in parts if r.check.reason)),
    }
