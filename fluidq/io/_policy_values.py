"""How the products write values: numbers, whole numbers, Kubernetes quantities, Go durations, numbers in quotes."""

import math
import re
from fractions import Fraction
from typing import Any

from fluidq._errors import refuse
from fluidq.io._policy_node import Codec, Shown

_SUFFIX = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIX |= {s: Fraction(1000) ** (i + 1) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))}
_SUFFIX |= {f"{s}i": Fraction(1024) ** (i + 1) for i, s in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_INT32 = 2**31 - 1


def quantity(raw: Any, where: str) -> float:
    """A Kubernetes quantity, exactly: "500m" is 0.5, "10k" is 10,000, "1Gi" is 2^30. Raises InputError."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise refuse(where, Shown(raw), "a Kubernetes quantity such as 5, '500m' or '10k'")
    if isinstance(raw, int | float):
        return number(raw, where)
    match = _QUANTITY.fullmatch(raw) if len(raw) <= 64 else None
    if match is None:
        near = " (kilo is a small k, kibi is Ki)" if re.fullmatch(r"[\d.]+K", raw) else ""
        raise refuse(where, Shown(raw), f"a Kubernetes quantity such as 5, '500m' or '10k'{near}")
    sign, digits, exponent, suffix = match.groups()
    value = Fraction(digits) * (Fraction(10) ** int(exponent) if exponent else _SUFFIX[suffix or ""])
    return float(-value if sign == "-" else value)


def write_quantity(value: int | float) -> str:
    """The shortest of an integer, thousandths, and a decimal number."""
    if value == int(value):
        return str(int(value))
    thousandths = value * 1000
    return f"{round(thousandths)}m" if math.isclose(thousandths, round(thousandths), rel_tol=1e-12) else repr(value)


def number(raw: Any, where: str) -> float:
    """A finite number, not in quotes. Raises InputError."""
    if isinstance(raw, str):
        try:
            inner = float(raw)
        except ValueError:
            raise refuse(where, Shown(raw), "a number") from None
        raise refuse(where, raw, f"a number, without quotes: {inner:g}")
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise refuse(where, Shown(raw), "a number")
    if isinstance(raw, int) and abs(raw) > 2**63:
        raise refuse(where, Shown(raw), "a number below 2^63")
    if not math.isfinite(raw):
        raise refuse(where, raw, "a finite number")
    return float(raw)


def whole(raw: Any, where: str) -> float:
    """A whole number, as a float. Raises InputError."""
    value = number(raw, where)
    if not isinstance(raw, int) or abs(raw) > _INT32:
        raise refuse(where, raw, f"a whole number of at most {_INT32}")
    return value


def write_whole(value: int | float) -> int:
    """Rounded; without limit becomes the largest that the field holds."""
    return _INT32 if value > _INT32 else round(value)


def write_number(value: int | float) -> int | float:
    """5.0 as 5."""
    return int(value) if value == int(value) and abs(value) < 2**53 else float(value)


def text_number(raw: Any, where: str) -> float:
    """A number that the product keeps as text ("5"); without quotes it is taken too. Raises InputError."""
    if isinstance(raw, str):
        try:
            return number(float(raw), where)
        except ValueError:
            raise refuse(where, Shown(raw), "a finite number") from None
    return number(raw, where)


def flag(raw: Any, where: str) -> bool:
    """true or false. Raises InputError."""
    if not isinstance(raw, bool):
        raise refuse(where, Shown(raw), "true or false, without quotes")
    return raw


def text_flag(raw: Any, where: str) -> bool:
    """ "true" or "false", in quotes or not. Raises InputError."""
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise refuse(where, Shown(raw), "'true' or 'false'")


def text(raw: Any, where: str) -> str:
    """A text. Raises InputError."""
    if not isinstance(raw, str) or not raw:
        raise refuse(where, Shown(raw), "a text")
    return raw


def duration(raw: Any, where: str) -> float:
    """A duration as Go writes it ("30s", "1m30s") in seconds. Raises InputError."""
    if isinstance(raw, str):
        if raw == "0":
            return 0.0
        parts = _PART.findall(raw) if len(raw) <= 40 else []
        if parts and "".join(n + unit for n, unit in parts) == raw:
            return sum(float(n) * _UNITS[unit] for n, unit in parts)
    raise refuse(where, Shown(raw), "a duration with a unit such as '30s' or '5m'")


NUMBER = Codec(number, write_number)
WHOLE = Codec(whole, write_whole)
QUANTITY = Codec(quantity, write_quantity)
FLAG = Codec(flag, bool)
TEXT = Codec(text, str)
TEXT_NUMBER = Codec(text_number, lambda value: str(write_number(value)))
TEXT_FLAG = Codec(text_flag, lambda value: "true" if value else "false")
DURATION = Codec(duration, lambda value: f"{write_number(value)}s")
