"""Print the regular form of each closed form as a JAX function that reads like a hand-written one.

The only place that knows JAX syntax. It refuses what could give a NaN on the closed domain: a division by something
that may be 0, a logarithm or a root of something that may not be positive. The author then writes `Ratio`, or a
`Piecewise` whose condition says that the symbol is positive.
"""

import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import sympy as sp
from sympy.printing.pycode import PythonCodePrinter, _print_known_func

from derivations.core import ClosedForm, Derivation, DerivationError, all_derivations
from derivations.functions import plain
from derivations.layout import MinusLast, text
from derivations.symbols import QUANTITIES

CALLS = {
    "exp": "jnp.exp",
    "sin": "jnp.sin",
    "cos": "jnp.cos",
    "tan": "jnp.tan",
    "atan": "jnp.arctan",
    "sinh": "jnp.sinh",
    "cosh": "jnp.cosh",
    "tanh": "jnp.tanh",
    "Abs": "jnp.abs",
    "sign": "jnp.sign",
    "floor": "jnp.floor",
    "ceiling": "jnp.ceil",
    "erf": "erf",
    "erfc": "erfc",
}
SPECIAL = {"erf", "erfc"}  # from jax.scipy.special
SAFE = {"ratio", "most", "least", "positive_part"}  # from fluidq._numerics
WIDTH = 116


class JaxPrinter(MinusLast, PythonCodePrinter):
    """SymPy to JAX; `statements` holds the lines that must come before the printed expression."""

    def __init__(self, form: ClosedForm) -> None:
        super().__init__({"fully_qualified_modules": False})
        self.form = form
        self.statements: list[str] = []
        self.used: set[str] = set()
        self.guarded: dict[sp.Symbol, sp.Symbol] = {}  # symbols inside a branch that knows them to be positive

    def refuse(self, what: str) -> DerivationError:
        return DerivationError(f"{self.form.name}: {what}")

    def safe(self, name: str, *args: Any) -> str:
        self.used.add(name)
        return f"{name}({', '.join(a if isinstance(a, str) else self._print(a) for a in args)})"

    def _print_Symbol(self, expr: Any) -> str:
        plain_symbol = next((s for s, dummy in self.guarded.items() if dummy == expr), None)
        if plain_symbol is None and expr not in self.form.arguments:
            raise self.refuse(f"{expr} is no argument")
        return expr.name

    def _print_Float(self, expr: Any) -> str:
        return repr(float(expr))

    def _print_Infinity(self, expr: Any) -> Any:
        return "jnp.inf"

    def _print_NegativeInfinity(self, expr: Any) -> Any:
        return "-jnp.inf"

    def _print_Pi(self, expr: Any) -> str:
        return "jnp.pi"

    def _print_Exp1(self, expr: Any) -> str:
        return "jnp.e"

    def _print_NaN(self, expr: Any) -> Any:
        raise self.refuse("it holds a NaN")

    def _print_Pow(self, expr: Any, rational: bool = False) -> str:
        base, power = expr.args
        if base == sp.E:
            return f"jnp.exp({self._print(power)})"
        if not power.is_nonnegative and not base.is_positive:
            raise self.refuse(f"1/({base}) may divide by 0: write Ratio(a, b), or b in its positive factors")
        if not power.is_integer and not base.is_positive:
            raise self.refuse(f"({base})**({power}) has no finite gradient at 0: guard it by a Piecewise")
        if power == sp.Rational(1, 2):
            return f"jnp.sqrt({self._print(base)})"
        return super()._print_Pow(expr, rational=rational)

    def _print_Mul(self, expr: Any) -> str:
        for factor in expr.args:  # PythonCodePrinter writes quotients itself, without asking _print_Pow
            if isinstance(factor, sp.Pow) and not factor.args[1].is_nonnegative:
                self._print_Pow(factor)
        return super()._print_Mul(expr)

    def _print_log(self, expr: Any) -> str:
        if not expr.args[0].is_positive:
            raise self.refuse(f"log({expr.args[0]}) may be infinite: guard it by a Piecewise")
        return f"jnp.log({self._print(expr.args[0])})"

    def _print_Ratio(self, expr: Any) -> str:
        over, under, empty = expr.args
        return self.safe("ratio", over, under, *(() if empty == 0 else (empty,)))

    def _print_Most(self, expr: Any) -> str:
        return self.safe("most", *expr.args)

    def _print_Least(self, expr: Any) -> str:
        return self.safe("least", *expr.args)

    def _print_Max(self, expr: Any) -> str:
        """A tie with 0 has derivative 0; other ties take the argument that SymPy sorts first."""
        rest = [a for a in sp.ordered(expr.args) if a != 0]
        text = self._print(rest[-1])
        for arg in reversed(rest[:-1]):
            text = self.safe("most", self._print(arg), text)
        return self.safe("positive_part", text) if sp.S.Zero in expr.args else text

    def _print_Min(self, expr: Any) -> str:
        rest = list(sp.ordered(expr.args))
        text = self._print(rest[-1])
        for arg in reversed(rest[:-1]):
            text = self.safe("least", self._print(arg), text)
        return text

    def _print_Relational(self, expr: Any) -> str:
        operator = {"==": "==", "!=": "!="}.get(expr.rel_op, expr.rel_op)
        return f"{self._print(expr.lhs)} {operator} {self._print(expr.rhs)}"

    def _print_And(self, expr: Any) -> str:
        return " & ".join(f"({self._print(a)})" for a in sp.ordered(expr.args))

    def _print_Or(self, expr: Any) -> str:
        return " | ".join(f"({self._print(a)})" for a in sp.ordered(expr.args))

    def _print_Not(self, expr: Any) -> str:
        return f"jnp.logical_not({self._print(expr.args[0])})"

    def _print_Piecewise(self, expr: Any) -> Any:
        branches = list(expr.args)
        if branches[-1].cond != sp.true:
            raise self.refuse("a Piecewise must end with an otherwise branch")
        text = self._print(branches[-1].expr)
        for value, condition in reversed(branches[:-1]):
            known, branch = self._branch(value, condition)
            text = f"jnp.where({known}, {branch}, {text})"
        return text

    def _branch(self, value: Any, condition: Any) -> tuple[str, str]:
        """Condition and value: as they are when finite everywhere, else at nominal values where not taken."""
        try:
            return self._print(condition), self._print(value)
        except DerivationError:
            pass
        known = _positive_by(condition) & value.free_symbols
        inside = f"inside{len(self.statements) or ''}"
        self.statements.append(f"{inside} = {self._print(condition)}")
        for symbol in sorted(known, key=str):
            dummy = sp.Symbol(f"{symbol.name}_in", positive=True)
            self.guarded[symbol] = dummy
            self.statements.append(f"{dummy.name} = jnp.where({inside}, {symbol.name}, {self.nominal(symbol)!r})")
        return inside, self._print(value.subs({s: self.guarded[s] for s in known}))

    def nominal(self, symbol: sp.Symbol) -> float:
        nominal = QUANTITIES[symbol].nominal
        if nominal <= 0:
            raise self.refuse(f"{symbol} has no positive nominal value to stand in for it")
        return nominal

    def __call__(self, expr: Any) -> str:
        return self._print(expr)

    def emptyPrinter(self, expr: Any) -> str:
        raise self.refuse(f"{type(expr).__name__} has no JAX translation: {expr}")

    def _print_Function(self, expr: Any) -> str:
        name = type(expr).__name__
        if name not in CALLS:
            raise self.refuse(f"the function {name} has no JAX translation")
        if name in SPECIAL:
            self.used.add(name)
        return f"{CALLS[name]}({', '.join(self._print(a) for a in expr.args)})"


# SymPy's own printer would write some functions as Python's `math` and sums as loops: neither can be traced.
_known = {n[7:] for n in dir(PythonCodePrinter) if getattr(PythonCodePrinter, n) is _print_known_func}
for _name in {*CALLS, *_known, "Sum", "Product", "ITE", "Indexed"}:
    if f"_print_{_name}" not in vars(JaxPrinter):
        setattr(JaxPrinter, f"_print_{_name}", JaxPrinter._print_Function)


def _positive_by(condition: Any) -> set[sp.Symbol]:
    """The symbols that `condition` says are above 0."""
    parts = condition.args if isinstance(condition, sp.And) else (condition,)
    found = set()
    for part in parts:
        part = part.canonical if isinstance(part, sp.Rel) else part
        if isinstance(part, sp.StrictGreaterThan) and isinstance(part.lhs, sp.Symbol) and part.rhs.is_nonnegative:
            found.add(part.lhs)
    return found


def body(form: ClosedForm) -> tuple[list[str], set[str]]:
    """The statements of the generated function, and the names that they need."""
    printer = JaxPrinter(form)
    text = printer(form.jax_expr)
    names = ", ".join(a.name for a in form.arguments)
    # Python numbers become arrays first: they would raise at a division by 0, and stay numbers in a product.
    arrays = f"{names} = map(jnp.asarray, ({names}))" if len(form.arguments) > 1 else f"{names} = jnp.asarray({names})"
    return [arrays, *printer.statements, f"return {text}"], printer.used


def _wrapped(text: str, first: str = "    ", rest: str = "    ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _spaced(code: str) -> str:
    """Blanks around `*` and `/`, none around `**`."""
    return re.sub(r"(?<!\*)\s*([*/])\s*(?!\*)(?<!\*\*)", r" \1 ", code)


def _equation(form: ClosedForm) -> str:
    left = form.code_symbol or form.name
    return f"{left} = {_plain_text(form.textbook)}"


def _plain_text(expr: Any) -> str:
    """`expr` in plain text; a `Piecewise` is spelled out."""
    expr = plain(expr)
    if not isinstance(expr, sp.Piecewise):
        return text(expr)
    cases = [(text(v), text(c)) for v, c in tuple[Any, ...](expr.args)]
    return ", ".join(f"{v} otherwise" if c == "True" else f"{v} if {c}" for v, c in cases)


def _abbreviations(form: ClosedForm) -> list[str]:
    """One line for each abbreviation."""
    return [_wrapped(f"with {s} = {_plain_text(e)}", "        ", "            ") for s, e in form.where]


def function_source(form: ClosedForm, derivation: Derivation) -> str:
    """One generated function."""
    arguments = ", ".join(f"{a.name}: Scalar" for a in form.arguments)
    lines = [f"def {form.name}(*, {arguments}) -> Array:", *_wrapped(f'"""{form.words}').splitlines(), ""]
    lines += [_wrapped(_equation(form), "        ", "            "), *_abbreviations(form), "", "    Args:"]
    for argument in form.arguments:
        q = QUANTITIES[argument]
        lines.append(_wrapped(f"{argument.name}: {q.words} [{q.shown}], {q.range_words}.", " " * 8, " " * 12))
    lines += [
        "",
        "    Returns:",
        f"        An array of the broadcast shape of the arguments [{form.shown or form.unit}].",
    ]
    lines += ["", _wrapped(f"Assumes: {'; '.join(derivation.assumptions)}.", rest=" " * 8)]
    for convention in form.conventions:
        lines.append(_wrapped(f"Edge: {convention.words}; the guarded term's gradient is 0 there.", rest=" " * 8))
    if form.note:
        lines.append(_wrapped(f"Note: {form.note}", rest=" " * 8))
    lines += [_wrapped(f"Source: {derivation.id}, {derivation.source}.", rest=" " * 8), '    """']
    lines += [f"    {_spaced(line)}" for line in body(form)[0]]
    return "\n".join(lines) + "\n"


def targets(modules: dict[str, ModuleType]) -> dict[str, list[str]]:
    """The generated modules, each with the topics that feed it: `GENERATED` of a topic file, else its own name."""
    found: dict[str, list[str]] = {}
    for name, module in modules.items():
        if any(d.forms for d in module.DERIVATIONS):
            found.setdefault(getattr(module, "GENERATED", name), []).append(name)
    return dict(sorted(found.items()))


def _forms(modules: dict[str, ModuleType], sources: list[str]) -> list[tuple[Derivation, ClosedForm]]:
    derivations = all_derivations([modules[name] for name in sources])
    return [(d, f) for d in derivations for f in d.forms]


def module_source(target: str, modules: dict[str, ModuleType]) -> str:
    """The generated module `target`; its title is that of the topic of the same name."""
    sources = targets(modules)[target]
    pairs = _forms(modules, sources)
    functions = [function_source(f, d) for d, f in pairs]
    used: set[str] = set().union(*(body(f)[1] for _, f in pairs))
    imports = ["import jax.numpy as jnp"]
    if special := sorted(used & SPECIAL):
        imports.append(f"from jax.scipy.special import {', '.join(special)}")
    imports += ["from jaxtyping import Array", ""]
    imports.append(f"from fluidq._numerics import {', '.join(['Scalar', *sorted(used & SAFE)])}")
    title = (modules[target if target in sources else sources[0]].__doc__ or target).strip().splitlines()[0]
    files = " and ".join(f"derivations/{name}.py" for name in sources)
    ids = ", ".join(dict.fromkeys(d.id for d, _ in pairs))
    origin = f"Generated by `python -m derivations --write` from {files}, where each formula is proved ({ids})"
    head = [f'"""{title}', "", _wrapped(f"{origin}; change it there.", "", ""), '"""', "", *imports]
    return "\n".join(head) + "\n\n\n" + "\n\n".join(functions)


def package_source(modules: dict[str, ModuleType]) -> str:
    """The generated `__init__`: the modules, and the registry of every formula."""
    made = targets(modules)
    lines = [
        '"""Formulas proved in `derivations/`, as JAX functions: jit, vmap and differentiate them at will.',
        "",
        "`registry` maps the name of a formula to its module, derivation, unit, LaTeX and source.",
        "Generated by `python -m derivations --write`.",
        '"""',
        "",
        "from typing import TypedDict",
        "",
        *(f"from fluidq.formulas import {n} as {n}" for n in made),
        "",
        "",
        "class Formula(TypedDict):",
        '    """What is known of one formula."""',
        "",
        "    module: str",
        "    id: str",
        "    unit: str",
        "    arguments: dict[str, str]  # name to unit",
        "    latex: str",
        "    source: str",
        "",
        "",
        "registry: dict[str, Formula] = {",
    ]
    for target, sources in made.items():
        for d, f in _forms(modules, sources):
            units = ", ".join(f'"{a.name}": "{QUANTITIES[a].shown}"' for a in f.arguments)
            lines += [
                f'    "{f.name}": {{',
                f'        "module": "{target}",',
                f'        "id": "{d.id}",',
                f'        "unit": "{f.shown or f.unit}",',
                f'        "arguments": {{{units}}},',
                f'        "latex": r"{f.equation_latex}",',
                f'        "source": "{d.source}",',
                "    },",
            ]
    exported = ", ".join(f'"{n}"' for n in sorted([*made, "registry"]))
    lines += ["}", "", f'__all__ = ["Formula", {exported}]']
    return "\n".join(lines) + "\n"


def files(modules: dict[str, ModuleType], root: Path) -> dict[Path, str]:
    """Every generated Python file with its text."""
    folder = root / "fluidq" / "formulas"
    made = {folder / "__init__.py": package_source(modules)}
    return made | {folder / f"{target}.py": module_source(target, modules) for target in targets(modules)}


__all__ = ["JaxPrinter", "body", "files", "function_source", "module_source", "package_source"]
