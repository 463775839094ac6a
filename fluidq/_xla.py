"""How fluidq compiles for the CPU: stages stay apart, as the code that wrote them says.

XLA for CPU drops `optimization_barrier` before it fuses, and then recomputes every chain of cheap operations inside
each result that reads it: a closed loop is ten times slower for it. A compiler option keeps the barriers. It can be
given to an outermost `jax.jit` only, so it is given wherever fluidq compiles by itself; code that wraps fluidq in its
own `jax.jit` is right without it, and fast with `jax.jit(f, compiler_options=fluidq.compiler_options())`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer


def compiler_options() -> dict[str, str] | None:
    """Options for an outermost `jax.jit` around fluidq code; None where the default backend is not the CPU."""
    return {"xla_disable_hlo_passes": "cse_barrier_expander"} if jax.default_backend() == "cpu" else None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` with those options where the call is an outermost one, plain where it is inside another."""
    plain = eqx.filter_jit(function)
    fast: list[Callable[..., Any]] = []  # made on the first call: asking for the backend starts it

    def call(*args: Any) -> Any:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
            return plain(*args)
        if not fast:
            # filter_jit hands the options on to jax.jit; its overloads do not say so.
            fast.append(eqx.filter_jit(function, compiler_options=compiler_options()))  # pyright: ignore[reportCallIssue]
        try:
            return fast[0](*args)
        except ValueError as error:  # constants inside somebody's jit
            if "top-level" not in str(error):
                raise
            return plain(*args)

    return call
