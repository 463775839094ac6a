"""What a derivation is: closed forms with units, steps to read, proofs that can fail, published figures to meet.

A topic file makes `Derivation` objects and lists them in `DERIVATIONS`; README.md of this folder shows one.
Proofs receive the derivation and ask it for its formulas, so that a damaged formula reaches the proof.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import sympy as sp

from derivations.functions import plain
from derivations.layout import latex
from derivations.symbols import QUANTITIES, units
from derivations.units import ONE, UnitError, ones_away, parse, unit_of

FRAMEWORK = {"core", "coverage", "functions", "layout", "proving", "show", "symbols", "to_jax", "to_latex", "units"}
TAGS = {"P": "primary source", "S": "secondary account", "K": "standard theory", "D": "derived"}


class DerivationError(ValueError):
    """A derivation that is put together wrongly."""


@dataclass(frozen=True)
class Step:
    """One line of reasoning; `checked=False` where the equation has no consistent unit (a sum of logarithms)."""

    text: str
    equation: Any = None
    checked: bool = True


@dataclass(frozen=True)
class Convention:
    """Where the formula has no value of its own, and what the generated function then gives (its gradient is 0)."""

    where: Any  # a SymPy condition
    words: str


@dataclass(frozen=True)
class ClosedForm:
    """One formula: the `textbook` face for people, and where that is singular the `regular` face for JAX.

    `symbol` is the LaTeX of the left side, `code_symbol` its plain text; `arguments` fixes the order of the generated
    keywords; `where` explains abbreviations that the textbook face uses; `dimensional` is the (expanded) textbook face
    with `units.one(...)` where a bare 1 carries a unit.
    """

    name: str
    symbol: str
    textbook: Any
    unit: str
    words: str
    arguments: tuple[Any, ...]
    regular: Any = None
    shown: str | None = None
    code_symbol: str | None = None
    where: tuple[tuple[sp.Symbol, Any], ...] = ()
    dimensional: Any = None
    conventions: tuple[Convention, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or any(c.isdigit() for c in self.name) or self.name != self.name.lower():
            raise DerivationError(f"{self.name!r}: a formula name is lower case with underscores, without digits")
        used = self.expanded.free_symbols | self.jax_expr.free_symbols
        if extra := used - set(self.arguments):
            raise DerivationError(f"{self.name}: {sorted(map(str, extra))} are used but are no arguments")
        if unused := set(self.arguments) - self.jax_expr.free_symbols:
            raise DerivationError(f"{self.name}: the arguments {sorted(map(str, unused))} are not used")
        if strange := set(self.arguments) - set(QUANTITIES):
            raise DerivationError(f"{self.name}: {sorted(map(str, strange))} are not made by symbols.quantity")

    @property
    def expanded(self) -> Any:
        """The textbook face in the arguments alone."""
        return self.textbook.subs(dict(self.where)) if self.where else self.textbook

    @property
    def jax_expr(self) -> Any:
        """The face that becomes JAX."""
        return self.expanded if self.regular is None else self.regular

    @property
    def equation_latex(self) -> str:
        """`left side = right side` for papers; a left side may end with its own relation."""
        return f"{self.symbol}{self.relation} {latex(self.textbook)}"

    @property
    def relation(self) -> str:
        """What stands between the sides: an equals sign, unless the left side ends with < or another relation."""
        return "" if self.symbol.endswith(("<", ">", r"\le", r"\ge", r"\leq", r"\geq", r"\approx", r"\sim")) else " ="

    def check_unit(self) -> None:
        """Raise `UnitError` unless every face has the declared unit."""
        wanted = parse(self.unit)
        faces = [self.dimensional or self.expanded]
        if self.dimensional is not None and sp.simplify(ones_away(self.dimensional) - self.expanded) != 0:
            raise UnitError(f"{self.name}: the dimensional form is another formula")
        if self.regular is not None and self.dimensional is None:
            faces.append(self.regular)
        for face in faces:
            found = unit_of(face, units())
            if found is not None and found != wanted:
                raise UnitError(f"{self.name}: [{found}] is found where [{wanted}] is declared")


@dataclass(frozen=True)
class Proof:
    """`check(derivation)` gives what must vanish (an expression) or hold (a boolean), or several of them."""

    words: str
    check: Callable[["Derivation"], Any]


@dataclass(frozen=True)
class Published:
    """A published figure next to ours. `ours` is `form name` evaluated at `inputs`, times `scale`; or a callable.

    `tolerance` is relative; `rounding` is half a unit of the last printed digit, and replaces it. Tags [S] and [K] are
    soft: shown, never asserted. `reason` says why a figure is missed (`expected="miss"`) or soft.
    """

    id: str
    source: str
    tag: str
    published: float
    ours: str | Callable[["Derivation"], Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    scale: Any = 1
    unit: str = ""
    tolerance: float = 0.0
    rounding: float = 0.0
    expected: str = "hit"
    reason: str = ""

    def __post_init__(self) -> None:
        if self.tag not in TAGS:
            raise DerivationError(f"{self.id}: tag {self.tag!r} is none of {', '.join(TAGS)}")
        if self.tag in "SK" and self.expected == "hit":
            object.__setattr__(self, "expected", "soft")
        if self.expected not in ("hit", "miss", "soft"):
            raise DerivationError(f"{self.id}: expected is {self.expected!r}, not hit, miss or soft")
        if self.expected != "hit" and not self.reason:
            raise DerivationError(f"{self.id}: a {self.expected} needs its reason")
        if not (self.tolerance > 0) != (self.rounding > 0):
            raise DerivationError(f"{self.id}: give either a tolerance or a rounding, above 0")

    @property
    def covers(self) -> str:
        """The check that it is part of: V03 for "V03b", V12 for "V12-1GB/s"; else what stands before a dash."""
        numbered = re.match(r"V\d\d(?!\d)", self.id)
        return numbered[0] if numbered else self.id.partition("-")[0]

    def value(self, derivation: "Derivation") -> float:
        """What we get for it."""
        found = (
            value(derivation.formula(self.ours), self.inputs) if isinstance(self.ours, str) else self.ours(derivation)
        )
        return float(found * self.scale)

    def compared(self, ours: float) -> "CheckResult":
        """The verdict on our value."""
        gap = ours - self.published
        allowed = self.rounding or self.tolerance * abs(self.published)
        verdict = "hit" if abs(gap) <= allowed * (1 + 1e-9) else "miss"
        return CheckResult(self, ours, gap / abs(self.published or 1.0), "soft" if self.expected == "soft" else verdict)


@dataclass(frozen=True)
class CheckResult:
    """A published figure, ours, and how they compare."""

    check: Published
    ours: float
    relative_error: float  # signed; absolute where the published figure is 0
    verdict: str

    @property
    def as_declared(self) -> bool:
        """Whether the verdict is the one that the derivation declares."""
        return self.verdict == self.check.expected

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        check = self.check
        return {
            "id": check.id,
            "covers": check.covers,
            "source": check.source,
            "tag": check.tag,
            "published": check.published,
            "ours": self.ours,
            "unit": check.unit,
            "relative_error": self.relative_error,
            "verdict": self.verdict,
            "reason": check.reason,
        }


@dataclass(frozen=True)
class Derivation:
    """One numbered result with everything that belongs to it."""

    id: str
    name: str
    statement: str
    assumptions: tuple[str, ...]
    steps: tuple[Step, ...]
    forms: tuple[ClosedForm, ...]
    proofs: tuple[Proof, ...]
    limits: tuple[str, ...]
    source: str
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        if not (self.id[0] == "D" and self.id[1:].isdigit()):
            raise DerivationError(f"{self.id!r}: an id is D and a number")
        if not self.proofs:
            raise DerivationError(f"{self.id} has no proof")
        names = [f.name for f in self.forms]
        if len(set(names)) != len(names):
            raise DerivationError(f"{self.id} names a formula twice")

    def form(self, name: str) -> ClosedForm:
        """The closed form called `name`."""
        for form in self.forms:
            if form.name == name:
                return form
        raise DerivationError(f"{self.id} has no formula {name!r}")

    def formula(self, name: str) -> Any:
        """The textbook face of `name`, in its arguments alone."""
        return self.form(name).expanded

    def regular(self, name: str) -> Any:
        """The regular face of `name`."""
        return self.form(name).jax_expr

    def with_form(self, name: str, **changes: Any) -> "Derivation":
        """A copy in which the closed form `name` is changed: what tests damage."""
        self.form(name)
        return replace(self, forms=tuple(replace(f, **changes) if f.name == name else f for f in self.forms))

    def check_units(self) -> None:
        """Raise `UnitError` for a closed form or a step whose dimensions do not fit."""
        for form in self.forms:
            form.check_unit()
        for step in self.steps:
            if step.checked and isinstance(step.equation, sp.Basic):
                try:
                    unit_of(step.equation, units())
                except UnitError as error:
                    raise UnitError(f"{self.id}, step {step.text!r}: {error}") from None

    def check_published(self) -> tuple[CheckResult, ...]:
        """Every published figure next to ours."""
        return tuple(check.compared(check.value(self)) for check in self.published)

    def _repr_html_(self) -> str:
        from derivations.show import as_html

        return as_html(self)

    def _repr_latex_(self) -> str:
        return "\n".join(f"$${form.equation_latex}$$" for form in self.forms)

    def __str__(self) -> str:
        from derivations.show import as_text

        return as_text(self)


def vanishes(residual: Any) -> bool:
    """Whether a residual is 0, a condition true, or all of several."""
    if isinstance(residual, bool | sp.logic.boolalg.BooleanAtom):
        return bool(residual)
    if isinstance(residual, list | tuple):
        return bool(residual) and all(vanishes(part) for part in residual)
    if isinstance(residual, sp.MatrixBase):
        return all(vanishes(part) for part in residual)
    if isinstance(residual, sp.Rel):
        return sp.simplify(residual) is sp.true
    if isinstance(residual, sp.Expr | int):
        return residual == 0 or sp.simplify(sp.sympify(residual)) == 0
    return False


def run_proof(derivation: Derivation, proof: Proof) -> str:
    """Empty when the proof holds, else what is left of it."""
    try:
        residual = proof.check(derivation)
    except Exception as error:  # a proof may fail in any way; each is a failed proof
        return f"{type(error).__name__}: {error}"
    if vanishes(residual):
        return ""
    left = [r for r in residual if not vanishes(r)] if isinstance(residual, list | tuple) else residual
    return f"left over: {left}"


def first_failure(derivation: Derivation) -> str:
    """The first proof (or unit) that fails, with what is left of it; empty when all hold."""
    try:
        derivation.check_units()
    except UnitError as error:
        return f"units: {error}"
    for proof in derivation.proofs:
        if left := run_proof(derivation, proof):
            return f"{proof.words}: {left}"
    return ""


def value(expr: Any, at: Mapping[Any, Any], digits: int = 30) -> Any:
    """`expr` at a point given by symbols or code names, to `digits` digits; floats are taken at their exact value."""
    names = {str(s): s for s in expr.free_symbols}
    point = {}
    for key, number in at.items():
        symbol = names.get(str(key))
        if symbol is not None:
            point[symbol] = sp.Rational(number) if isinstance(number, int | float) and abs(number) < 1e300 else number
    return sp.N(expr.subs(point).doit(), digits)


def positive(expr: Any) -> Any:
    """`expr` with every nonnegative symbol strictly positive: the interior, where `Ratio` and `Abs` evaluate."""
    return expr.subs({s: sp.Symbol(s.name, positive=True) for s in expr.free_symbols if s.is_nonnegative})


def same_inside(derivation: Derivation, name: str) -> Any:
    """Textbook minus regular in the interior: the usual proof that the two faces are one formula."""
    return plain(positive(derivation.formula(name))) - plain(positive(derivation.regular(name)))


def both_faces_agree(*names: str) -> Proof:
    """The proof that textbook and regular face agree wherever no denominator is 0."""
    return Proof("textbook and regular form agree in the interior", lambda d: [same_inside(d, n) for n in names])


def topics() -> dict[str, ModuleType]:
    """The topic modules of this package by name: every module that is neither framework nor private."""
    import derivations

    found = {}
    for info in pkgutil.iter_modules(derivations.__path__):
        if info.name in FRAMEWORK or info.name.startswith("_"):
            continue
        module = importlib.import_module(f"derivations.{info.name}")
        if not isinstance(getattr(module, "DERIVATIONS", None), tuple):
            raise DerivationError(f"derivations/{info.name}.py defines no tuple DERIVATIONS")
        found[info.name] = module
    return found


def all_derivations(modules: Iterable[ModuleType] | None = None) -> tuple[Derivation, ...]:
    """Every derivation in D-number order; ids and formula names must be unique."""
    found = [d for m in (topics().values() if modules is None else modules) for d in m.DERIVATIONS]
    ids, names = [d.id for d in found], [f.name for d in found for f in d.forms]
    for seen in (ids, names):
        if twice := sorted({x for x in seen if seen.count(x) > 1}):
            raise DerivationError(f"defined twice: {', '.join(twice)}")
    return tuple(sorted(found, key=lambda d: int(d.id[1:])))


__all__ = [
    "ONE",
    "ClosedForm",
    "Convention",
    "Derivation",
    "DerivationError",
    "Proof",
    "Published",
    "Step",
    "UnitError",
    "all_derivations",
    "both_faces_agree",
    "positive",
    "same_inside",
    "topics",
    "value",
]
