"""What the readers of requests share: the rows they keep, why they drop one, and how a cell becomes a number."""

import datetime
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

import numpy as np

from fluidq._errors import InputError, refuse
from fluidq.io._files import short

TICKS = 10_000_000  # per second: time is held in whole units of 100 ns until the first stamp is taken away
MOST_TOKENS = 1_000_000_000
LAST_SECOND = 10**11  # 3,170 years; as ticks it still fits 64 bits
MOST_REASONS = 10_000

LENGTH = f"a whole number from 1 to {MOST_TOKENS}"
STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?([0-5]\d))?",
    re.ASCII,
)
DECIMAL = re.compile(r"(\d{1,12})(?:\.(\d*))?", re.ASCII)


class BadRow(Exception):
    """Why one row cannot be used; never leaves `fluidq.io`. `failed`: the row is sound, the request was not."""

    def __init__(self, words: str, failed: bool = False):
        super().__init__(words)
        self.failed = failed


class _Shown:
    """A value whose repr stays short, however large or deep the value."""

    def __init__(self, value: object):
        self.value = value

    def __repr__(self) -> str:
        return short(self.value)


def bad(name: str, value: object, wanted: str, failed: bool = False) -> BadRow:
    """The reason why field `name` with `value` spoils its row."""
    return BadRow(str(refuse(name, _Shown(value), wanted)), failed)


@dataclass
class Rows:
    """Requests in the order of the file, as columns of whole numbers, and the rows that were dropped.

    `line` is the line in the file, `ticks` the time in 100 ns, `isl` and `osl` in tokens. Where the file has prefix
    blocks of `block_tokens` each, `count` holds how many a row has (-1: it names none) and `ids` the ids of all rows
    one after the other. `models` counts rows by model where the file names one. `strict` raises at the first bad row.
    """

    file: str
    strict: bool
    line: array = field(default_factory=lambda: array("q"))
    ticks: array = field(default_factory=lambda: array("q"))
    isl: array = field(default_factory=lambda: array("i"))
    osl: array = field(default_factory=lambda: array("i"))
    count: array = field(default_factory=lambda: array("i"))
    ids: array = field(default_factory=lambda: array("q"))
    block_tokens: int = 0
    dropped: int = 0
    failed: int = 0
    reasons: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    models: Counter = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.line)

    def add(self, line: int, ticks: int, isl: int, osl: int) -> None:
        """Keep one row."""
        self.line.append(line)
        self.ticks.append(ticks)
        self.isl.append(isl)
        self.osl.append(osl)

    def add_many(self, line: np.ndarray, ticks: np.ndarray, isl: np.ndarray, osl: np.ndarray) -> None:
        """Keep a block of rows, each argument of shape (rows,)."""
        for column, values in ((self.line, line), (self.ticks, ticks), (self.isl, isl), (self.osl, osl)):
            column.frombytes(np.ascontiguousarray(values, dtype=column.typecode).tobytes())

    def drop(self, line: int, why: str, failed: bool = False) -> None:
        """Leave one row out; raises `InputError` where `strict`."""
        if self.strict:
            raise InputError(f"{self.file}, line {line}: {why}")
        self.dropped += 1
        self.failed += failed
        if len(self.reasons) < MOST_REASONS:
            self.reasons.append((line, why))

    def check_some(self, remedy: str) -> None:
        """Raises `InputError` where no row was kept, or fewer than are unusable (failed requests are usable)."""
        kept, unusable = len(self), self.dropped - self.failed
        first = f" The first: line {self.reasons[0][0]}: {self.reasons[0][1]}" if self.reasons else ""
        if not kept:
            raise InputError(f"{self.file} has no usable row ({self.dropped} dropped); it must be {remedy}.{first}")
        if unusable > kept:
            raise InputError(
                f"{self.file}: {unusable} of {kept + self.dropped} rows are unusable, more than half; mend the file or "
                f"convert it.{first}"
            )


def length(name: str, value: object, output: bool = False) -> int:
    """A token count, from the text of a CSV cell or a JSON value; raises `BadRow`. No `output` is a failed request."""
    number = value
    if isinstance(value, str):
        text = value.strip()
        plain = text.isascii() and len(text) < 40 and "_" not in text
        if plain and text.isdigit():
            number = int(text)
        else:
            try:
                number = float(text) if plain else float("nan")
            except ValueError:
                raise bad(name, value, LENGTH) from None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if type(number) is not int or not 0 < number <= MOST_TOKENS:
        none = output and type(number) is int and number == 0
        raise bad(name, value, LENGTH + ("; 0 marks a failed request" if none else ""), failed=none)
    return number


def json_length(name: str, value: object, output: bool = False) -> int:
    """A token count from a JSON value, where "12" is not 12; raises `BadRow`."""
    if isinstance(value, str):
        raise bad(name, value, LENGTH)
    return length(name, value, output)


def iso_ticks(name: str, text: str, days: dict[str, int]) -> int:
    """An ISO time as ticks since year 1, in whole numbers; `days` remembers the dates met. Raises `BadRow`."""
    found = STAMP.fullmatch(text.strip())
    if found is None:
        raise bad(name, text, "a time like 2023-11-16 18:15:46.6805900")
    date, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    day = days.get(date)
    if day is None:
        try:
            day = days[date] = datetime.date.fromisoformat(date).toordinal()
        except ValueError:
            raise bad(name, text, "a date of the calendar") from None
    seconds = day * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign is not None:
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds += -offset if sign == "+" else offset
    return seconds * TICKS + (int(fraction[:7].ljust(7, "0")) if fraction else 0)


def second_ticks(name: str, text: str) -> int:
    """A time in seconds, as text, in ticks (what is finer than a tick is cut off). Raises `BadRow`."""
    plain = text.strip()
    found = DECIMAL.fullmatch(plain)
    if found:
        ticks = int(found[1]) * TICKS + int((found[2] or "")[:7].ljust(7, "0"))
    else:
        try:
            number = Decimal(plain) if plain.isascii() and len(plain) < 40 and "_" not in plain else Decimal("nan")
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or number.adjusted() > 11 or number < 0:
            raise bad(name, text, f"a time in s from 0 to {LAST_SECOND}")
        ticks = int(number * TICKS)
    if ticks > LAST_SECOND * TICKS:
        raise bad(name, text, f"a time in s from 0 to {LAST_SECOND}")
    return ticks


def json_ticks(name: str, value: object, per_second: int) -> int:
    """A time of a JSON record in ticks, given in units of which a second has `per_second`. Raises `BadRow`."""
    last = LAST_SECOND * per_second
    if type(value) not in (int, float) or not 0 <= value <= last:  # pyright: ignore[reportOperatorIssue]
        raise bad(name, value, f"a time in {'ms' if per_second == 1000 else 's'} from 0 to {last}")
    scale = TICKS // per_second
    return value * scale if type(value) is int else round(value * scale)  # pyright: ignore[reportOperatorIssue]
