"""The [parameters] section of a scenario: which parameters a search moves, within what, and which are set."""

from typing import Any, NamedTuple

import equinox as eqx

from fluidq import units
from fluidq._errors import refuse
from fluidq.space import FLEET, find, tunables
from fluidq.tune import Moves

FREE, FIXED, TO, OTHERS = "free", "fixed", "..", "others"
WANTED = '"free", "fixed", a range "low .. high", or a number to set it and keep it there'


class Given(NamedTuple):
    """What the section says, in SI: names free and fixed, ranges, values that are set, and whether all others stay."""

    free: tuple[str, ...]
    fixed: tuple[str, ...]
    bounds: dict[str, tuple[float, float]]
    values: dict[str, float]
    only: bool = False


def read_moves(table: dict[str, Any], kinds: dict[str, str]) -> Given:
    """The section's entries; `kinds` are the dimensions of names that have one, for text with units.

    Raises InputError naming the entry. Whether the policy has the names is for `apply_moves` to say.
    """
    free, fixed, bounds, values = [], [], {}, {}
    for name, entry in table.items():
        where, kind = f"parameters.{name}", kinds.get(name, "1")
        if name == OTHERS:
            if entry != FIXED:
                raise refuse(where, entry, f'"{FIXED}", or left out: what is not named moves')
        elif entry == FREE:
            free.append(name)
        elif entry == FIXED:
            fixed.append(name)
        elif isinstance(entry, str) and TO in entry:
            low, high = entry.split(TO, 1)
            bounds[name] = units.parse(low.strip(), kind, where), units.parse(high.strip(), kind, where)
        elif isinstance(entry, bool) or not isinstance(entry, int | float | str):
            raise refuse(where, entry, WANTED)
        else:
            values[name] = units.parse(entry, kind, where)
            fixed.append(name)
    return Given(tuple(free), tuple(fixed), bounds, values, OTHERS in table)


def apply_moves(given: Given, policy: Any, fleet: Any) -> tuple[Any, Any, Moves]:
    """The policy and the fleet with the values that are set, and what moves.

    All of the policy's own parameters move but the fixed ones, and those of the fleet that are named; with
    `others = "fixed"`, only what is named as free or bounded.
    """
    policy = policy.spelled_out()
    every = tunables(policy, fleet)
    for name, value in given.values.items():
        if name not in every:
            continue  # `make_space` refuses it, with the nearest name
        path = FLEET[name][0] if name in FLEET else name
        tree = fleet if name in FLEET else policy
        tree = eqx.tree_at(lambda t, path=path: find(t, path), tree, float(value))
        policy, fleet = (policy, tree) if name in FLEET else (tree, fleet)
    free = given.free if given.only else (*tunables(policy), *given.free)
    kept = set(given.fixed)
    return policy, fleet, Moves([name for name in free if name not in kept], given.fixed, given.bounds)
