"""Every generated formula against the SymPy object it came from: values, gradients, edges, transformations.

Parametrised over all derivations: a new one is tested without a change here.
"""

import importlib
import inspect
import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp

import derivations
from derivations.core import topics, value
from derivations.functions import plain
from derivations.symbols import QUANTITIES
from fluidq import formulas

FORMS = [
    (getattr(module, "GENERATED", name), d, f)
    for name, module in topics().items()
    for d in module.DERIVATIONS
    for f in d.forms
]
each = pytest.mark.parametrize(("topic", "d", "form"), FORMS, ids=[f.name for _, _, f in FORMS])
DRAWS = 24


def function(topic, form):
    return getattr(importlib.import_module(f"fluidq.formulas.{topic}"), form.name)


def of_vector(topic, form):
    """The formula of one vector of arguments, in their order."""
    call = function(topic, form)
    return lambda x: call(**{a.name: x[i] for i, a in enumerate(form.arguments)})


def smooth(form):
    """The arguments that a derivative makes sense for."""
    return [i for i, a in enumerate(form.arguments) if not QUANTITIES[a].integer]


def drawn(form, rng):
    """A random interior point; an argument whose range ends at another is drawn after it."""
    point = {}
    for argument in sorted(form.arguments, key=lambda a: len(QUANTITIES[a].high.free_symbols)):
        q = QUANTITIES[argument]
        low, high = (end.subs(point) if end.free_symbols <= set(point) else sp.oo for end in (q.low, q.high))
        if q.integer:
            x = float(rng.integers(max(1, int(low)), max(2, 2 * int(q.nominal) + 1)))
        elif low.is_finite and high.is_finite:
            x = float(low) + float(high - low) * rng.uniform(0.03, 0.97)
        elif low.is_finite:
            x = float(low) + (q.nominal - float(low)) * 10 ** rng.uniform(-1, 1)
        else:
            x = rng.choice([-1.0, 1.0]) * abs(q.nominal) * 10 ** rng.uniform(-1, 1)
        point[argument] = x
    return [point[a] for a in form.arguments]


def draws(form, count=DRAWS):
    rng = np.random.default_rng(sum(map(ord, form.name)))
    return np.array([drawn(form, rng) for _ in range(count)])


def edge_points(form):
    """Every combination of usual values, closed ends and special points of the arguments."""
    choices = []
    for argument in form.arguments:
        q = QUANTITIES[argument]
        usual = [q.nominal, -q.nominal] if q.low == -sp.oo else [q.nominal]
        choices.append([*usual, *q.edges])
    points = []
    for chosen in itertools.product(*choices):
        point = dict(zip(form.arguments, chosen, strict=True))
        numbers = [
            sp.sympify(x).subs({a: sp.Rational(v) for a, v in point.items() if not hasattr(v, "args")}) for x in chosen
        ]
        if all(n.is_number for n in numbers):  # an end at a symbol that is no argument is no edge of this formula
            points.append([float(n) for n in numbers])
    return np.unique(np.array(points), axis=0)


def sympy_value(expr, form, x):
    return value(expr, {a: float(v) for a, v in zip(form.arguments, x, strict=True)})


def agreed(form, x):
    """Whether a convention holds at the point: there the value is agreed and the gradient 0."""
    at = {a: sp.Rational(float(v)) for a, v in zip(form.arguments, x, strict=True)}
    return any(c.where.subs(at) == sp.true for c in form.conventions)


@each
def test_it_equals_sympy_at_random_points(topic, d, form):
    f = of_vector(topic, form)
    for x in draws(form):
        ours = float(f(jnp.asarray(x)))
        for face in (form.expanded, form.jax_expr):
            exact = float(sympy_value(plain(face) if face is form.expanded else face, form, x))
            assert ours == pytest.approx(exact, rel=1e-10, abs=0.0 if exact else 1e-300), dict(
                zip(form.arguments, x, strict=True)
            )


@each
def test_jit_vmap_and_keywords_agree(topic, d, form):
    call, f, xs = function(topic, form), of_vector(topic, form), draws(form)
    one_by_one = np.array([f(jnp.asarray(x)) for x in xs])
    compiled = jax.jit(jax.vmap(f))(xs)
    at_once = call(**{a.name: xs[:, i] for i, a in enumerate(form.arguments)})
    np.testing.assert_allclose(compiled, one_by_one, rtol=1e-12)
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-12)
    numbers = call(**{a.name: float(x) for a, x in zip(form.arguments, xs[0], strict=True)})
    assert isinstance(numbers, jax.Array)
    assert float(numbers) == pytest.approx(one_by_one[0], rel=1e-12)
    parameters = inspect.signature(call).parameters
    assert list(parameters) == [a.name for a in form.arguments]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())


def differences(f, x, i, h):
    up, down = x.copy(), x.copy()
    up[i] += h
    down[i] -= h
    return float((f(up) - f(down)) / (up[i] - down[i]))


@each
def test_gradients_equal_central_differences_inside(topic, d, form):
    f = jax.jit(of_vector(topic, form))
    forward, reverse = jax.jit(jax.jacfwd(f)), jax.jit(jax.jacrev(f))
    for x in draws(form):
        ahead, back = np.asarray(forward(x)), np.asarray(reverse(x))
        assert (np.abs(ahead - back) <= 1e-10 * np.abs(ahead) + 1e-12 * abs(float(f(x))) / np.abs(x)).all()
        for i in smooth(form):
            scale = abs(x[i])
            wanted = differences(f, x, i, 3e-6 * scale)
            # rounding of f over the step, and the curvature, in the units of the derivative
            allowed = 1e-6 * abs(wanted) + 1e-9 * (abs(float(f(x))) + _size(form, x)) / scale
            assert ahead[i] == pytest.approx(wanted, rel=0, abs=allowed), (form.arguments[i], x)


def _size(form, x):
    """The largest term that may cancel in the formula: what its rounding is relative to."""
    terms = [t for t in sp.preorder_traversal(form.jax_expr) if isinstance(t, sp.Add)]
    parts = [abs(sympy_value(t, form, x)) for add in terms for t in add.args]
    return max((float(p) for p in parts if p.is_finite), default=0.0)


@each
def test_values_are_right_on_the_edges(topic, d, form):
    f = jax.jit(jax.vmap(of_vector(topic, form)))
    points = edge_points(form)
    for x, ours in zip(points, np.asarray(f(points)), strict=True):
        exact = sympy_value(form.jax_expr, form, x)
        assert exact.is_extended_real, (form.arguments, x)
        assert float(ours) == pytest.approx(float(exact), rel=1e-10, abs=1e-12 * abs(float(np.nanmax(np.abs(x)))))
        if not agreed(form, x):
            textbook = sympy_value(plain(form.expanded), form, x)
            if textbook.is_finite:
                assert float(textbook) == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


@each
def test_gradients_on_the_edges_are_finite_and_one_sided_right(topic, d, form):
    """Each component lies between the smallest and largest one of nearby interior points; all equal where smooth."""
    f = of_vector(topic, form)
    points = edge_points(form)
    value_at, ahead_at = jax.jit(jax.vmap(f)), jax.jit(jax.vmap(jax.jacfwd(f)))
    ahead, back = np.asarray(ahead_at(points)), np.asarray(jax.jit(jax.vmap(jax.jacrev(f)))(points))
    assert np.isfinite(ahead).all()
    assert np.isfinite(back).all()
    middle = np.asarray(value_at(points))
    held = np.array([agreed(form, x) for x in points])
    assert np.isfinite(middle[~held]).all(), "an infinite value needs a Convention that says so"
    nominal = np.array([abs(QUANTITIES[a].nominal) for a in form.arguments])
    rounding = 1e-12 * np.where(np.isfinite(middle), np.abs(middle), 0.0)[:, None] / nominal
    assert (np.abs(ahead - back) <= 1e-10 * np.abs(ahead) + rounding).all()
    rng = np.random.default_rng(7)
    usual = 1e-4 * np.median(np.abs(np.asarray(ahead_at(draws(form)))), axis=0)  # what a small step adds to a 0
    for x, gradient in zip(points[~held], ahead[~held], strict=True):
        near = x + 1e-6 * nominal * rng.uniform(-1, 1, (4096, len(nominal)))
        near = near[_inside(form, near)][:96]
        assert len(near), (form.arguments, x)
        around = np.asarray(ahead_at(np.resize(near, (96, len(nominal)))))  # one shape, one compilation
        allowed = 1e-4 * np.abs(around).max(axis=0) + usual
        assert (gradient >= around.min(axis=0) - allowed)[smooth(form)].all(), (form.arguments, x)
        assert (gradient <= around.max(axis=0) + allowed)[smooth(form)].all(), (form.arguments, x)


def _inside(form, points):
    """Which points lie strictly inside the domain."""
    ok = np.ones(len(points), dtype=bool)
    for i, argument in enumerate(form.arguments):
        q = QUANTITIES[argument]
        for end, above in ((q.low, True), (q.high, False)):
            if end.is_infinite or not end.free_symbols <= set(form.arguments):
                continue
            bound = sp.lambdify(form.arguments, end, "numpy")(*points.T)
            ok &= points[:, i] > bound if above else points[:, i] < bound
    return ok


def test_the_registry_knows_every_formula():
    assert set(formulas.registry) == {f.name for _, _, f in FORMS}
    for topic, d, form in FORMS:
        entry = formulas.registry[form.name]
        assert (entry["module"], entry["id"], entry["source"]) == (topic, d.id, d.source)
        assert entry["latex"] == form.equation_latex
        assert list(entry["arguments"]) == [a.name for a in form.arguments]
        assert hasattr(getattr(formulas, topic), form.name)


@each
def test_the_docstring_says_what_a_reader_needs(topic, d, form):
    text = inspect.getdoc(function(topic, form))
    assert text is not None
    assert f"Source: {d.id}" in text
    assert (form.code_symbol or form.name) + " = " in text
    for argument in form.arguments:
        assert f"{argument.name}: {QUANTITIES[argument].words}" in " ".join(text.split())
    for convention in form.conventions:
        assert " ".join(convention.words.split()) in " ".join(text.split())


def test_importing_fluidq_imports_neither_sympy_nor_derivations():
    code = "import sys, fluidq, fluidq.formulas; print(sorted({'sympy', 'derivations'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_published_worked_example():
    """GLM-5.2 on B200: 56,250 tok/s, 95 kB per token, one 400 Gb/s NIC."""
    glm = dict(r_P=56_250, kappa_store=95_000, hit=0, hit_decode=0)
    assert float(formulas.fabric.transfer_flow(**glm)) == 5.34375e9
    assert float(formulas.fabric.fabric_margin(**glm, nic=50_000_000_000)) == pytest.approx(9.357, abs=5e-4)


def test_every_derivation_is_reachable_by_id():
    assert derivations.derivation("D14").form("shock_loss").name == "shock_loss"
