"""Text with units to SI floats at the boundary, and SI floats to text for people.

Built on Pint, with a registry of our own: in Pint's default one a bit is a dimensionless number, so that bits and
bytes mix silently. Here information is a dimension, its unit is the byte, and a bit is an eighth of it.

- Bytes and bits: `B` is a byte, `b`, `bit` and `bps` are bits. `400Gbps` is 50e9 B/s.
- Decimal and binary: `kB`, `MB`, `GB` are powers of 1000, `KiB`, `MiB`, `GiB` powers of 1024. `KB` is read as `kB`.
- Case matters, because it is all that tells bits from bytes.
- A bare number is SI where only one reading exists (seconds, tokens); where bits or bytes could be meant it is refused.
"""

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

import pint

from fluidq._errors import InputError, refuse, unknown

Number = float | int  # what `float` means to a static checker, said so that run-time checks take an int too
Quantity = str | SupportsFloat

# Fractions keep "5.34GB/s" exact: the one rounding is the last step to float.
_DEFINITIONS = """
nano- = 1/1000000000 = n-
micro- = 1/1000000 = u- = µ-
milli- = 1/1000 = m-
kilo- = 1000 = k- = K-
mega- = 1000000 = M-
giga- = 1000000000 = G-
tera- = 1000000000000 = T-
peta- = 1000000000000000 = P-
exa- = 1000000000000000000 = E-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
byte = [information] = B = Byte
bit = byte / 8 = b = Bit
second = [time] = s = sec
minute = 60 * second = min
hour = 3600 * second = h = hr
day = 86400 * second = d
token = [token] = tok
request = [request] = req
sequence = [sequence] = seq
gpu = [gpu] = GPU
flop = [operation] = FLOP
percent = 1/100
bit_per_second = bit / second = bps
byte_per_second = byte / second = Bps
flop_per_second = flop / second = FLOPS
"""

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL)
_UNIT = re.compile(r"[A-Za-zµ]+(?:[*/][A-Za-zµ]+){0,3}")


@dataclass(frozen=True)
class _Dimension:
    """What one kind of quantity is called, the unit its SI value counts, an example, and the units to suggest."""

    words: str
    si: str
    example: str
    units: tuple[str, ...]
    also: str | None = None  # a second unit accepted because the field itself says the rest


_BYTES = ("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_BIT_RATES = ("kbps", "Mbps", "Gbps", "Tbps", "Mbit/s", "Gbit/s", "Mb/s", "Gb/s")
_BYTE_RATES = tuple(f"{unit}/s" for unit in _BYTES)

DIMENSIONS = {
    "bytes": _Dimension("a size", "byte", "150GB", (*_BYTES, "Mb", "Gb", "Gbit")),
    "bytes/s": _Dimension("a data rate", "byte/second", "50GB/s or 400Gbps", (*_BYTE_RATES, *_BIT_RATES)),
    "bytes/token": _Dimension("a size per token", "byte/token", "95kB or 95kB/token", _BYTES, also="byte"),
    "seconds": _Dimension("a time", "second", "88s or 1.5h", ("ns", "us", "ms", "s", "min", "h", "d")),
    "tokens": _Dimension("a number of tokens", "token", "8192 or 8192tok", ("tok", "ktok", "Mtok", "tokens")),
    "tokens/s": _Dimension("a token rate", "token/second", "13114tok/s", ("tok/s", "ktok/s", "tokens/s")),
    "requests": _Dimension("a number of requests", "request", "100 or 100req", ("req", "requests")),
    "requests/s": _Dimension("a request rate", "request/second", "2.5req/s", ("req/s", "req/min", "requests/s")),
    "flop": _Dimension("a number of operations", "flop", "80GFLOP", ("FLOP", "GFLOP", "TFLOP", "PFLOP")),
    "flop/s": _Dimension("a compute rate", "flop/second", "4.5PFLOP/s", ("GFLOP/s", "TFLOP/s", "PFLOP/s")),
    "gpus": _Dimension("a number of GPUs", "gpu", "64 or 64GPUs", ("GPU", "GPUs")),
    "gpu_hours": _Dimension("GPU time", "gpu*hour", "12GPU-hours", ("GPU*h", "GPU*min", "GPU-hours")),
    "1": _Dimension("a plain number", "", "0.5 or 50%", ("%", "percent")),
}
_BITS_OR_BYTES = ("bytes", "bytes/s", "bytes/token")


@functools.cache
def _registry() -> pint.UnitRegistry:
    # Pint takes None (no default units) and any number type; its annotations are narrower than its documentation.
    registry = pint.UnitRegistry(None, non_int_type=Fraction)  # pyright: ignore[reportArgumentType]
    for line in _DEFINITIONS.strip().splitlines():
        registry.define(line)
    return registry


def _kind(dimension: str) -> _Dimension:
    if dimension not in DIMENSIONS:
        raise unknown("dimension", dimension, DIMENSIONS)
    return DIMENSIONS[dimension]


def _base(unit: str) -> tuple[Fraction, dict[str, int]]:
    """`unit` in base units, and its dimensions; raises `pint.UndefinedUnitError` for one that does not exist."""
    if not unit:
        return Fraction(1), {}
    registry = _registry()
    parsed = registry.parse_units(unit)
    factor, _ = registry.get_base_units(parsed)
    return Fraction(str(factor)), {name: int(str(power)) for name, power in registry.get_dimensionality(parsed).items()}


@functools.lru_cache(maxsize=512)
def _factor(unit: str, dimension: str) -> Fraction | str:
    """One `unit` in SI as a `dimension`; where it measures something else, the words for what that is."""
    factor, found = _base(unit)
    kind = DIMENSIONS[dimension]
    for si_unit in (kind.si, kind.also):
        if si_unit is None:
            continue
        one, wanted = _base(si_unit)
        # "per GPU" is said by the field: 5.34GB/s/GPU is as good as 5.34GB/s.
        if found in (wanted, {**wanted, "[gpu]": wanted.get("[gpu]", 0) - 1}):
            return factor / one
    return next((k.words for k in DIMENSIONS.values() if _base(k.si)[1] == found), "something else")


def _unknown_unit(unit: str, text: str, dimension: str, field: str) -> InputError:
    known = DIMENSIONS[dimension].units
    if dimension in _BITS_OR_BYTES:
        # "gb/s" or "400G": both readings are offered, for a guess could be wrong by a factor of eight.
        bare = unit.lower()
        readings = [u for u in known if u.lower() in (bare, f"{bare}b", f"{bare}b/s", f"{bare}bps")]
        if len(readings) > 1:
            return refuse(field, text, f"written with its full unit, {' or '.join(readings)} (B is a byte, b a bit)")
        if "b" in bare:
            known = [u for u in known if ("B" in u) == ("B" in unit)] or known
    return unknown(f"unit in {field} = {text!r}:", unit, known)


def _bare(n: float, given: object, dimension: str, field: str) -> InputError:
    """The refusal of a number without a unit, with the two things it could have meant."""
    large = abs(n) >= 1e6  # already counted in bytes, most likely
    if dimension == "bytes/s":
        remedy = f"{n / 1e9:g}GB/s or {n * 8e-9:g}Gbps" if large else f"{n:g}Gbps or {n / 8:g}GB/s"
    elif dimension == "bytes":
        remedy = f"{n / 1e9:g}GB or {n * 8e-9:g}Gb" if large else f"{n:g}GB or {n / 8:g}GB (if it was Gb)"
    else:
        remedy = f"{n / 1e3:g}kB" if abs(n) >= 1e3 else f"{n:g}kB"
    return refuse(field, given, f"{DIMENSIONS[dimension].words} with its unit, bits or bytes: write {remedy}")


def _within(
    value: float, given: object, dimension: str, field: str, minimum: Number | None, above: Number | None
) -> float:
    words = DIMENSIONS[dimension].words
    if math.isnan(value):
        raise refuse(field, given, f"{words}, not NaN")
    if minimum is not None and value < minimum:
        raise refuse(field, given, f"{words} >= {format(minimum, dimension)}")
    if above is not None and value <= above:
        raise refuse(field, given, f"{words} > {format(above, dimension)}")
    return value


def _joined(separator: re.Match[str]) -> str:
    return "/" if separator.group().strip() in ("/", "per") else "*"


def parse(
    value: Quantity, dimension: str, field: str, minimum: Number | None = None, above: Number | None = None
) -> float:
    """The SI value of a text such as `400Gbps`, `95kB`, `88s`, `1.5h`, exact to the last bit of a float.

    Args:
        value: the text; a bare number (as text or as a number) is SI, and is refused where bits or bytes could be
            meant, unless it is 0.
        dimension: one of `DIMENSIONS`; "gpu_hours" counts GPU-hours, "bytes/token" takes `95kB` too, and what is per
            GPU takes a trailing `/GPU`.
        field: the name used in messages.
        minimum, above: the least value allowed, and the value that must be exceeded [SI].

    Raises:
        InputError: not a number with a unit, unknown unit, wrong dimension, not finite, out of range.

    >>> parse("400Gbps", "bytes/s", "nic"), parse("1GiB", "bytes", "C"), parse("95KB", "bytes/token", "kv")
    (50000000000.0, 1073741824.0, 95000.0)
    """
    wanted = f"{_kind(dimension).words} such as {DIMENSIONS[dimension].example}"
    text = value if isinstance(value, str) else repr(float(value))
    match = _NUMBER.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise refuse(field, value, wanted)
    digits, unit = match.groups()
    size = float(digits)
    if math.isinf(size):
        raise refuse(field, value, "a finite number")
    number = Fraction(digits) if size else Fraction(0)  # "1e-999999999" must not become a billion digits
    if not unit:
        if dimension in _BITS_OR_BYTES and number:
            raise _bare(size, value, dimension, field)
        return _within(size, value, dimension, field, minimum, above)
    plain = "percent" if unit == "%" else re.sub(r"\s*[*/·-]\s*|\s+per\s+|\s+", _joined, unit)
    if not _UNIT.fullmatch(plain):
        raise refuse(field, value, wanted)
    try:
        factor = _factor(plain, dimension)
    except pint.UndefinedUnitError:
        raise _unknown_unit(plain, text, dimension, field) from None
    if isinstance(factor, str):
        raise refuse(field, value, f"{wanted}; {unit!r} is the unit of {factor}")
    try:
        result = float(number * factor)
    except OverflowError:
        raise refuse(field, value, "a finite number") from None
    return _within(result, value, dimension, field, minimum, above)


def si(
    value: Quantity, dimension: str, field: str, minimum: Number | None = None, above: Number | None = None
) -> float:
    """The SI value of a Python argument: text goes through `parse`, a number is SI already (infinity allowed).

    >>> si(5.34e9, "bytes/s", "flow"), si("5.34GB/s", "bytes/s", "flow")
    (5340000000.0, 5340000000.0)
    """
    if isinstance(value, str):
        return parse(value, dimension, field, minimum, above)
    _kind(dimension)
    return _within(float(value), value, dimension, field, minimum, above)


_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PREFIXED = {"bytes": "B", "bytes/s": "B/s", "bytes/token": "B/token", "flop": "FLOP", "flop/s": "FLOP/s"}
_TIMES = ((172800.0, 86400.0, "d"), (7200.0, 3600.0, "h"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-9, 1e-6, "us"))
_COUNTED = {
    "tokens": "tok",
    "tokens/s": "tok/s",
    "requests": "req",
    "requests/s": "req/s",
    "gpus": "GPUs",
    "gpu_hours": "GPU-hours",
    "1": "",
}


def format(value: SupportsFloat, dimension: str, digits: int = 3) -> str:
    """A value for people: decimal prefixes, `digits` significant digits, and no noise.

    >>> format(150e9, "bytes"), format(5.34375e9, "bytes/s"), format(56250, "tokens/s"), format(0.0303, "seconds")
    ('150 GB', '5.34 GB/s', '56,250 tok/s', '30.3 ms')
    """
    _kind(dimension)
    x = float(value)
    if not math.isfinite(x):
        return f"{x} {_PREFIXED.get(dimension) or _COUNTED.get(dimension, 's')}".rstrip()
    if dimension in _PREFIXED:
        x = float(f"{x:.{digits - 1}e}")  # round first, so that 999.96 GB becomes 1 TB and not 1000 GB
        scale, prefix = next((s for s in _PREFIXES if abs(x) >= s[0]), (1.0, ""))
        return f"{x / scale:.{digits}g} {prefix}{_PREFIXED[dimension]}"
    if dimension == "seconds":
        scale, unit = next((s[1:] for s in _TIMES if abs(x) >= s[0]), (1.0, "s"))
        return f"{_plain(x / scale, digits)} {unit}"
    return f"{_plain(x, digits)} {_COUNTED[dimension]}".rstrip()


def _plain(x: float, digits: int) -> str:
    """`x` with thousands separators and no exponent: whole above 10**digits, else `digits` significant digits."""
    if abs(x) >= 10 ** (digits - 1):
        return f"{x:,.0f}"
    return f"{x:.{digits}g}"
