"""What the verbs that run a fleet share: scenario, trace and seed from the flags; a policy by name or file."""

import argparse
from pathlib import Path
from typing import Any

from fluidq._errors import refuse


def overrides(args: argparse.Namespace, seeded: tuple[str, ...] = ("workload",)) -> dict[str, dict[str, Any]]:
    """The scenario file's keys in SI, with `--trace` and `--seed` (for these sections) over them."""
    from fluidq.scenario import read_scenario

    over = read_scenario(args.scenario)
    if getattr(args, "trace", None) is not None:
        over.setdefault("workload", {})["trace"] = args.trace
    seed = getattr(args, "seed", None)
    if seed is not None:
        if not 0 <= seed < 2**63:
            raise refuse("--seed", seed, "an integer from 0 to 2^63 - 1")
        for section in seeded:
            over.setdefault(section, {})["seed"] = seed
    return over


def policy_of(name: str, case: Any, pool: str | None = None) -> tuple[Any, Any]:
    """The policy of that name or file for the case, and its `PolicyFile` (None for a name).

    A name without a dot or a slash that is no file is a law; an unknown one is refused with the nearest.
    """
    from fluidq.laws import LAWS, law
    from fluidq.policies import Thresholds

    if name == "thresholds" and isinstance(case.policy, Thresholds):
        return case.policy, None
    if name in LAWS or not ("." in name or "/" in name or Path(name).is_file()):
        return law(name, case.fleet, case.objective), None
    from fluidq.io.policies import read_policy

    file = read_policy(name, fleet=case.fleet, pool=pool)
    return file.policy, file
