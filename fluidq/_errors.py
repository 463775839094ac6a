"""Exceptions for bad input, and the one place that words them."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used: the message names the field, the value and the remedy."""


def refuse(field: str, value: object, wanted: str) -> InputError:
    """The error for `field` holding `value` where `wanted` would be right; the caller raises it.

    >>> str(refuse("cold_start", -3.0, "a time >= 0 s"))
    'cold_start is -3.0; it must be a time >= 0 s.'
    """
    return InputError(f"{field} is {value!r}; it must be {wanted}.")


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a `name` that is not among the `known` ones, with the nearest of them.

    >>> str(unknown("GPU", "B20", ["B200", "H100"]))
    "unknown GPU 'B20'; did you mean 'B200'? Known: B200, H100."
    """
    names = sorted(known)
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f" did you mean {lower[near[0]]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r};{hint} Known: {', '.join(names)}.")
