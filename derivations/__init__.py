"""The theory of disaggregated inference, each formula proved by SymPy: one file per topic, README.md shows how.

>>> from derivations import derivation
>>> derivation("D01").name
'Balance ratio'
"""

from derivations.core import Derivation, DerivationError, all_derivations


def derivation(id: str) -> Derivation:
    """The derivation numbered `id`, such as "D15"."""
    for found in all_derivations():
        if found.id == id.upper():
            return found
    raise DerivationError(f"there is no derivation {id!r}; known: {', '.join(d.id for d in all_derivations())}")


__all__ = ["Derivation", "DerivationError", "all_derivations", "derivation"]
