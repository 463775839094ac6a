"""Aliases for annotations. At run time, in tests, jaxtyping and beartype check them."""

from typing import TYPE_CHECKING, Any

from jaxtyping import ArrayLike, Real

if TYPE_CHECKING:
    # A number, an array or a tracer: static checkers cannot follow arithmetic on that union, so they are not asked to.
    Scalar = Any
    PerClass = Any
else:
    Scalar = Real[ArrayLike, ""]
    PerClass = Real[ArrayLike, "..."]  # a number, or one per class of requests
