"""The requests that a fleet is sized for: raw moments of their lengths, of one class or of several, or of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import ArrayLike, Real

from fluidq._errors import InputError, refuse
from fluidq.formulas import requests
from fluidq.units import Number, Quantity, si

Lengths = Real[ArrayLike, " requests"] | Sequence[Number]


@dataclass(frozen=True)
class Traffic:
    """Raw moments per request. A mixture of classes has the weighted mean of every field.

    Attributes:
        isl, osl: stored input and output tokens [tok].
        computed: input tokens that prefill computes, E[(1 - h) I] [tok].
        moved: input tokens whose KV crosses the fabric, E[(1 - h_D) I] [tok].
        attended: E[(1 - h^2) I^2]: what quadratic attention takes (D04) [tok^2].
        computed_sq: E[((1 - h) I)^2], for the wait (D24) [tok^2].
        osl_sq, isl_osl: E[O^2] and E[I O], for the context of a decode step (D05) [tok^2].
    """

    isl: float
    osl: float
    computed: float
    moved: float
    attended: float
    computed_sq: float
    osl_sq: float
    isl_osl: float

    @property
    def context(self) -> float:
        """Mean context of a decode step [tok] (D05): renewal reward, each request weighted by its steps."""
        if not self.osl:
            return self.isl
        # A number of tokens is whole, so that E[O^2] >= E[O]; below one output token the context is the input.
        second = max(self.osl_sq, self.osl)
        return float(requests.mean_context(osl=self.osl, isl_osl=self.isl_osl, osl_sq=second))

    @property
    def hit(self) -> float:
        """Token-weighted share of the input that prefill need not compute."""
        return 1 - self.computed / self.isl if self.isl else 0.0

    @property
    def hit_decode(self) -> float:
        """Token-weighted share of the input that need not move."""
        return 1 - self.moved / self.isl if self.isl else 0.0

    @property
    def service_scv(self) -> float:
        """Squared coefficient of variation of the computed lengths."""
        return max(0.0, self.computed_sq / self.computed**2 - 1) if self.computed else 0.0

    @classmethod
    def of(
        cls,
        isl: Quantity,
        osl: Quantity,
        hit: Quantity = 0.0,
        hit_decode: Quantity = 0.0,
        isl_scv: Quantity = 0.0,
        osl_scv: Quantity = 0.0,
    ) -> "Traffic":
        """Independent lengths with these means and squared coefficients of variation (0: all alike; 1: exponential).

        Raises:
            InputError: a length below 0 or infinite, a share outside 0 to 1, a variation below 0.
        """
        I, O = _length(isl, "isl"), _length(osl, "osl")  # noqa: E741  (the theory's names)
        h, h_D = _share(hit, "hit"), _share(hit_decode, "hit_decode")
        v_I, v_O = (si(v, "1", name, minimum=0.0) for v, name in ((isl_scv, "isl_scv"), (osl_scv, "osl_scv")))
        if not np.isfinite(v_I + v_O):
            raise refuse("isl_scv" if not np.isfinite(v_I) else "osl_scv", np.inf, "a finite number >= 0")
        second = I * I * (1 + v_I)
        return cls(
            isl=I,
            osl=O,
            computed=(1 - h) * I,
            moved=(1 - h_D) * I,
            attended=(1 - h * h) * second,
            computed_sq=(1 - h) ** 2 * second,
            osl_sq=O * O * (1 + v_O),
            isl_osl=I * O,
        )

    @classmethod
    def mixed(cls, classes: Sequence["tuple[Number, Traffic]"]) -> "Traffic":
        """Several classes as one, by their shares of the requests; they share the decode batch (D06).

        Raises:
            InputError: no class, or a weight that is not > 0.
        """
        if not classes:
            raise refuse("classes", 0, "at least one class")
        for weight, _ in classes:
            if not (np.isfinite(weight) and weight > 0):
                raise refuse("weight of a class", weight, "a finite number > 0")
        whole = float(sum(weight for weight, _ in classes))
        return cls(**{f.name: sum(w / whole * getattr(t, f.name) for w, t in classes) for f in fields(cls)})

    @classmethod
    def of_lengths(
        cls, isl: Lengths, osl: Lengths, computed: Lengths | None = None, hit_decode: Quantity = 0.0
    ) -> "Traffic":
        """The empirical moments of requests, correlation included; `computed` is the input less the cached tokens.

        Raises:
            InputError: arrays of different length or none, a negative length, more computed than stored.
        """
        i, o = np.asarray(isl, dtype=float), np.asarray(osl, dtype=float)
        c = i if computed is None else np.asarray(computed, dtype=float)
        h_D = _share(hit_decode, "hit_decode")
        if not (i.ndim == 1 and i.size and i.shape == o.shape == c.shape):
            raise InputError(f"isl has {i.size} values and osl {o.size}; they must be as many, and one at least.")
        for name, values in (("isl", i), ("osl", o), ("computed", c)):
            if not (np.isfinite(values) & (values >= 0)).all():
                raise refuse(name, float(values.min()), "finite lengths >= 0")
        if (c > i).any():
            raise refuse("computed", float(c[c > i][0]), "at most the stored length")
        cached = i - c
        return cls(
            isl=float(i.mean()),
            osl=float(o.mean()),
            computed=float(c.mean()),
            moved=float((1 - h_D) * i.mean()),
            attended=float((i * i - cached * cached).mean()),
            computed_sq=float((c * c).mean()),
            osl_sq=float((o * o).mean()),
            isl_osl=float((i * o).mean()),
        )


def _length(value: Quantity, name: str) -> float:
    tokens = si(value, "tokens", name, minimum=0.0)
    if np.isinf(tokens):
        raise refuse(name, value, "a finite number of tokens >= 0")
    return tokens


def _share(value: Quantity, name: str) -> float:
    share = si(value, "1", name, minimum=0.0)
    if share > 1:
        raise refuse(name, value, "a share from 0 to 1")
    return share
