"""Traces with one CSV row per request: Azure LLM inference, BurstGPT, Splitwise."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fluidq._errors import InputError
from fluidq.io._files import short
from fluidq.io._formats import _fast
from fluidq.io._formats._rows import MOST_TOKENS, BadRow, Rows, bad, iso_ticks, length, second_ticks


@dataclass(frozen=True)
class Layout:
    """Where one kind of CSV trace keeps what is needed: columns of the time, the lengths, their sum and the model.

    `clock` is "iso" or "seconds"; `total` and `model` name columns that may be absent ("": the kind has none).
    """

    name: str
    clock: str
    time: str
    isl: str
    osl: str
    total: str = ""
    model: str = ""

    @property
    def needed(self) -> tuple[str, str, str]:
        """The columns without which the file is of no use."""
        return self.time, self.isl, self.osl

    def complete(self, names: list[str]) -> bool:
        """Whether all of them are among `names`."""
        return {name.lower() for name in self.needed} <= {name.lower() for name in names}


AZURE = Layout("Azure LLM CSV", "iso", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = Layout(
    "BurstGPT CSV", "seconds", "Timestamp", "Request tokens", "Response tokens", total="Total tokens", model="Model"
)
SPLITWISE = Layout("Splitwise CSV", "seconds", "arrival_timestamp", "prompt_size", "token_size")
LAYOUTS = (AZURE, BURSTGPT, SPLITWISE)


def cells(text: str) -> list[str]:
    """The fields of one line; quotes hold commas together, and where they are not closed they stay in the text."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text.strip()], skipinitialspace=True, strict=True), [""])
    except csv.Error:
        return text.split(",")


def layout_of(names: list[str]) -> Layout | None:
    """The layout that shares most columns with `names` (at least one beside a common time column), or None."""
    lower = {name.lower() for name in names}
    shared = {layout: len({name.lower() for name in layout.needed} & lower) for layout in LAYOUTS}
    best = max(LAYOUTS, key=lambda layout: shared[layout])
    # All of Azure's and BurstGPT's time columns read "timestamp": alone, in capitals, it is Azure's.
    if shared[best] == 1 and "timestamp" in lower:
        return AZURE if "TIMESTAMP" in names else None
    return best if shared[best] else None


def read(rows: Rows, layout: Layout, names: list[str], header_line: int, blocks: Iterable[tuple[int, bytes]]) -> None:
    """Every row of `blocks` (number of the first line, bytes) into `rows`; raises `InputError` for a bad header."""
    lower = [name.lower() for name in names]
    for column in (*layout.needed, *filter(None, (layout.total, layout.model))):
        times = lower.count(column.lower())
        if times > 1 or (times == 0 and column in layout.needed):
            raise InputError(
                f"{rows.file}, line {header_line}: the column {column} is {'twice or more' if times else 'missing'} "
                f"among {short(', '.join(names))}; the header must name {', '.join(layout.needed)}, each once."
            )
    reader = _Reader(rows, layout, lower)
    for number, block in blocks:
        reader.block(number, block)
    if rows.models and len(rows.models) > 1:
        shares = ", ".join(f"{name} {count:,}" for name, count in rows.models.most_common(5))
        rows.notes.append(f"rows of {len(rows.models)} models are read as one workload: {shares}")


class _Reader:
    def __init__(self, rows: Rows, layout: Layout, lower: list[str]):
        self.rows, self.layout, self.header = rows, layout, lower
        self.at_time, self.at_isl, self.at_osl = (lower.index(name.lower()) for name in layout.needed)
        self.at_total, self.at_model = (
            lower.index(name.lower()) if name and name.lower() in lower else -1 for name in (layout.total, layout.model)
        )
        self.days: dict[str, int] = {}

    def block(self, number: int, block: bytes) -> None:
        fields = _fast.cut(block, len(self.header))
        ticks, sound = _fast.READERS[self.layout.clock](fields, self.at_time)
        isl, sound_isl = _fast.whole(fields, self.at_isl)
        osl, sound_osl = _fast.whole(fields, self.at_osl)
        sound = sound & sound_isl & sound_osl
        for tokens in (isl, osl):
            sound &= (tokens > 0) & (tokens <= MOST_TOKENS)
        if self.at_total >= 0:
            total, sound_total = _fast.whole(fields, self.at_total)
            sound &= sound_total & (total == isl + osl)
        if self.at_model >= 0:
            self.rows.models.update(_fast.labels(fields, self.at_model, sound))
        done = fields.plain[sound]
        left = np.ones(fields.ends.size, dtype=bool)
        left[done] = False
        left &= fields.ends > fields.starts
        values = (ticks[sound], isl[sound], osl[sound])
        at = 0
        for index in np.flatnonzero(left):  # those kept before it first: the order of the file decides among equals
            stop = int(np.searchsorted(done, index))
            self.rows.add_many(number + done[at:stop], *(column[at:stop] for column in values))
            at = stop
            text = block[fields.starts[index] : fields.ends[index]].decode("utf-8", "replace")
            if not text.isspace():
                self.row(number + int(index), text)
        self.rows.add_many(number + done[at:], *(column[at:] for column in values))

    def time(self, text: str) -> int:
        name = self.layout.time
        return iso_ticks(name, text, self.days) if self.layout.clock == "iso" else second_ticks(name, text)

    def row(self, line: int, text: str) -> None:
        parts = cells(text)
        layout = self.layout
        try:
            if len(parts) != len(self.header):
                more = "" if len(parts) < len(self.header) else ", without commas in a number"
                raise BadRow(f"the row has {len(parts)} fields; it must have {len(self.header)}{more}.")
            ticks = self.time(parts[self.at_time])
            isl = length(layout.isl, parts[self.at_isl])
            osl = length(layout.osl, parts[self.at_osl], output=True)
            if self.at_total >= 0 and (total := length(layout.total, parts[self.at_total])) != isl + osl:
                raise bad(layout.total, total, f"{isl + osl}, the sum of {layout.isl} and {layout.osl}")
        except BadRow as why:
            again = [part.strip().lower() for part in parts] == self.header
            self.rows.drop(line, "the row repeats the header." if again else str(why), why.failed)
            return
        self.rows.add(line, ticks, isl, osl)
        if self.at_model >= 0:
            self.rows.models[parts[self.at_model].strip()[:24]] += 1
