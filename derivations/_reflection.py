"""The reflected queue, proved: clip-add maps, the Skorokhod formula, conservation, no loss, derivatives by counting.

Material of D19. A step of the queue adds d to the level Q in [0, C] and clips; the proofs go through its cases, and
where both sides only compare and choose among the same terms, through every order of those terms.
"""

import itertools
import random
from fractions import Fraction
from typing import Any

import sympy as sp

from derivations.core import Derivation, Proof
from derivations.symbols import C, Q, quantity

move = quantity("move", "d", "B", "what a step adds to the level, before the boundaries", 5e9, "real", special=(0,))

level, room, d, e, excess = sp.symbols("level room d e excess", positive=True)

# A step: from the inside, from each boundary; it stays, grazes, or crosses. Level, capacity and move in each.
STEPS = {
    "stays, up": (level, level + d + e, d),
    "stays, down": (level + d, level + d + e, -d),
    "still": (level, level + e, sp.S.Zero),
    "up to the edge": (level, level + d, d),
    "down to the edge": (d, d + e, -d),
    "over": (level, level + room, room + excess),
    "under": (level, level + e, -level - excess),
    "over from the edge": (room, room, excess),
    "under from the edge": (sp.S.Zero, room, -excess),
}
_FORMS = ("reflected_level", "overflow", "underflow")


def _step(derivation: Derivation, case: str, faces: str = "formula") -> tuple[Any, ...]:
    """Start, capacity, move, and then level, overflow and underflow by the formulas of the derivation."""
    at = dict(zip((Q, C, move), STEPS[case], strict=True))
    face = getattr(derivation, faces)
    return (*STEPS[case], *(sp.simplify(face(name).subs(at, simultaneous=True)) for name in _FORMS))


def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(high, max(low, x))


def _compose(second: tuple[Any, ...], first: tuple[Any, ...]) -> tuple[Any, ...]:
    """The clip-add map (d, low, high) that does `first` and then `second`."""
    (d1, l1, u1), (d2, l2, u2) = first, second
    return d1 + d2, _clip(l1 + d2, l2, u2), _clip(u1 + d2, l2, u2)


def _closed(derivation: Derivation) -> list[Any]:
    """Both sides choose among x + d1 + d2, l1 + d2, u1 + d2, l2, u2: every order of the five is tried."""
    found = True
    for y, a, b, l2, u2 in itertools.product(range(5), repeat=5):
        if a <= b and l2 <= u2:
            found &= _clip(_clip(y, a, b), l2, u2) == _clip(y, _clip(a, l2, u2), _clip(b, l2, u2))
    one = _clip_add_of(derivation)
    return [found, *one]


def _clip_add_of(derivation: Derivation) -> list[Any]:
    """The reflected level is the clip-add map (d, 0, C) in each case."""
    return [
        sp.simplify(_step(derivation, case)[3] - sp.Min(cap, sp.Max(0, start + moved)))
        for case, (start, cap, moved) in STEPS.items()
    ]


def _associative(derivation: Derivation) -> list[Any]:
    """The ends of three maps choose among l1 + d2 + d3 (or u1), l2 + d3, u2 + d3, l3, u3: every order is tried."""
    found = True
    for x, l2, u2, l3, u3 in itertools.product(range(5), repeat=5):
        if l2 <= u2 and l3 <= u3:  # written without the moves, which only shift the terms
            first, second, third = (0, x, x), (0, l2, u2), (0, l3, u3)
            found &= _compose(third, _compose(second, first)) == _compose(_compose(third, second), first)
    nothing = (0, -sp.oo, sp.oo)
    sample = (sp.S(3), sp.S(-1), sp.S(4))
    return [found, _compose(nothing, sample) == sample, _compose(sample, nothing) == sample, *_clip_add_of(derivation)]


def _skorokhod(derivation: Derivation) -> list[Any]:
    """By induction over the steps, for Q = g - K with g the one-sided map and K the supremum of the formula.

    g' = max(g + d, 0), and a minimum over a longer window goes into the maximum: K' = max(min(K, g'), (g' - C)+).
    K <= g holds throughout, so K and the gap to g are any nonnegative numbers; the cases below cover them.
    """
    K, gap, c = sp.symbols("K gap c", positive=True)
    found: list[Any] = []

    def new(g_next: Any, K_now: Any, capacity: Any) -> Any:
        return g_next - sp.Max(sp.Min(K_now, g_next), sp.Max(g_next - capacity, 0))

    def reflected(start: Any, moved: Any, capacity: Any) -> Any:
        at = {Q: start, move: moved, C: capacity}
        return derivation.formula("reflected_level").subs(at, simultaneous=True)

    for held in (sp.S.Zero, K):
        for start in (sp.S.Zero, gap):
            g_now = held + start
            for capacity in (start, start + c):  # at the boundary, or below it
                if capacity == 0:
                    continue
                # g' < 0 before its clip; g' between 0 and K; g' between K and K + C; g' above K + C
                nexts = [(-g_now - e, sp.S.Zero), (-g_now, sp.S.Zero)]
                nexts += [(held / (1 + e) - g_now, held / (1 + e)), (-start, held)]
                nexts += [(held + capacity / (1 + e) - g_now, held + capacity / (1 + e))]
                nexts += [
                    (held + capacity - g_now, held + capacity),
                    (held + capacity + e - g_now, held + capacity + e),
                ]
                for moved, g_next in nexts:
                    difference = new(g_next, held, capacity) - reflected(start, sp.expand(moved), capacity)
                    found.append(_zero(difference))
    first = new(level, sp.S.Zero, level + e) - level  # at time 0: psi = Q0 <= C, g = Q0, K = 0
    return [*found, sp.simplify(first)]


def _zero(difference: Any) -> Any:
    """`difference`, with the comparisons that SymPy leaves open decided by factoring."""

    def decide(kind: Any, args: tuple[Any, ...]) -> Any:
        best = args[0]
        for arg in args[1:]:
            sign = sp.factor(sp.together(arg - best))
            if kind is sp.Max:
                best = arg if sign.is_nonnegative else best if sign.is_nonpositive else kind(best, arg)
            else:
                best = arg if sign.is_nonpositive else best if sign.is_nonnegative else kind(best, arg)
        return best

    def walk(expr: Any) -> Any:
        if not expr.has(sp.Max, sp.Min):
            return expr
        args = tuple(walk(a) for a in expr.args)
        kind = type(expr)
        return decide(kind, args) if kind in (sp.Max, sp.Min) else expr.func(*args)

    return sp.simplify(walk(difference))


def _conserved(derivation: Derivation) -> list[Any]:
    """Q' = Q + d - over + under; over only where the buffer is full, under only where it is empty."""
    found = []
    for case in STEPS:
        start, cap, moved, after, over, under = _step(derivation, case)
        found += [sp.simplify(start + moved - over + under - after), sp.simplify((cap - after) * over)]
        found += [sp.simplify(after * under), bool(over.is_nonnegative), bool(under.is_nonnegative)]
        found += [bool(after.is_nonnegative), bool(sp.simplify(cap - after).is_nonnegative)]
    return found


def _no_loss(derivation: Derivation) -> list[Any]:
    """Nothing is lost in a step iff 0 <= Q + d <= C, and then Q' = Q + d: so along a path iff Q0 + psi stays inside."""
    found: list[Any] = []
    for case in STEPS:
        start, cap, moved, after, over, under = _step(derivation, case)
        fits = bool(sp.simplify(start + moved).is_nonnegative and sp.simplify(cap - start - moved).is_nonnegative)
        lost = bool((over + under).is_positive)
        found += [fits != lost, not fits or sp.simplify(after - start - moved) == 0]
    up, down = sp.symbols("up down", positive=True)  # max psi and -min psi
    found += [sp.simplify((down + up) - down - up), sp.solve([Q - down, C - Q - up], [Q, C])[C] - (up + down)]
    return found


def _slopes(derivation: Derivation) -> list[Any]:
    """D = dQ/dC: 1 from an overflow on, 0 from an underflow on, kept inside; an overflow loses 1 - D per byte of C.

    So a busy period (from one underflow to the next) loses one byte less per byte of C if it has an overflow, and
    none otherwise, and dQ/dC is 1 from its first overflow to its end. dQ/dQ0 is 1 until the first clip, then 0.
    """
    D = sp.Symbol("D", positive=True)
    small = sp.Symbol("small", real=True)
    found: list[Any] = []
    wanted = {"stays, up": (D, 0), "stays, down": (D, 0), "over": (1, D - 1), "under": (0, 0)}
    for case, (kept, lost) in wanted.items():
        start, capacity, moved = STEPS[case]
        at = {Q: start + D * small, C: capacity + small, move: moved}
        numbers = {level: 3, d: 2, e: 5, room: 4, excess: 6}  # inside its case a formula is one linear piece
        for name, slope in (("reflected_level", kept), ("overflow", lost)):
            near = [
                derivation.formula(name).subs(at, simultaneous=True).subs(numbers).subs(small, x).subs(D, D_at)
                for D_at in (0, 1)
                for x in (0, sp.Rational(1, 100))
            ]
            for D_at, (one, two) in zip((0, 1), (near[:2], near[2:]), strict=True):
                found.append((two - one) * 100 - sp.sympify(slope).subs(D, D_at))
    return found


def counted(seed: int = 1, steps: int = 4000, capacity: int = 30) -> tuple[Fraction, Fraction, int, int]:
    """On a random path: d(overflow)/dC and d(sum of levels)/dC by exact differences, and by counting.

    The moves are multiples of 1/7 plus distinct tiny parts, so no step ends on a boundary exactly and a small change of
    C changes no order of events: the difference is the derivative.
    """
    rng = random.Random(seed)
    moves = [Fraction(rng.randint(-140, 140), 7) + Fraction(2 * i + 1, 10**9) for i in range(steps)]

    def run(size: Fraction) -> tuple[Fraction, Fraction, int, int]:
        Q_now, over, area, busy_with_loss, high = Fraction(10), Fraction(0), Fraction(0), 0, 0
        seen = False
        for step in moves:
            free = Q_now + step
            if free > size:
                over += free - size
                busy_with_loss += not seen
                seen = True
            if free < 0:
                seen = False
            Q_now = min(max(free, Fraction(0)), size)
            area += Q_now
            high += seen
        return over, area, busy_with_loss, high

    h = Fraction(1, 10**18)
    (over, area, losses, high), (over_h, area_h, *_) = run(Fraction(capacity)), run(capacity + h)
    return (over_h - over) / h, (area_h - area) / h, losses, high


def _counted(derivation: Derivation) -> list[Any]:
    slope, area, losses, high = counted()
    one = derivation.formula("overflow").subs({Q: 0, C: 1, move: 3}) - 2  # the same map, in the formula
    return [sp.Rational(slope.numerator, slope.denominator) + losses, area == high, losses > 100, one]


def _both_faces(derivation: Derivation) -> list[Any]:
    return [
        sp.simplify(a - b)
        for case in STEPS
        for a, b in zip(_step(derivation, case)[3:], _step(derivation, case, "regular")[3:], strict=True)
    ]


PROOFS = (
    Proof("a step is a clip-add map, and two of them are one: every order of the terms", _closed),
    Proof("composition is associative, with an identity: every order of the terms", _associative),
    Proof("the two-sided Skorokhod formula equals the recursion, by induction", _skorokhod),
    Proof("conservation, complementarity, and a level within its bounds", _conserved),
    Proof("no loss iff the stock covers the deepest and the headroom the highest netput", _no_loss),
    Proof("derivatives to C along a path: what an overflow and an underflow do to them", _slopes),
    Proof("on a random path the exact difference is minus the number of busy periods with an overflow", _counted),
    Proof("the regular forms of the reflected step agree in every case", _both_faces),
)
