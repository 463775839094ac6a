"""Traces with one JSON object per request and line: Mooncake (both field sets) and Qwen-Bailian."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidq.io._files import BadJson, loads, short
from fluidq.io._formats import _fast_json
from fluidq.io._formats._rows import LAST_SECOND, MOST_TOKENS, TICKS, BadRow, Rows, bad, json_length, json_ticks

IDS = "hash_ids"


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of record: time (in units of which a second has `per_second`), lengths, block size."""

    name: str
    time: str
    isl: str
    osl: str
    per_second: int
    block_tokens: int

    @property
    def needed(self) -> tuple[str, str, str]:
        """The fields that every record has."""
        return self.time, self.isl, self.osl


MOONCAKE = Layout("Mooncake JSONL", "timestamp", "input_length", "output_length", 1000, 512)
MOONCAKE_TOKENS = Layout("Mooncake JSONL", "created_time", "input_tokens", "output_tokens", 1000, 512)
QWEN = Layout("Qwen-Bailian JSONL", "timestamp", "input_length", "output_length", 1, 16)


def layout_of(records: list[Any]) -> Layout | None:
    """The layout of the first JSON objects of a file (Mooncake's where it is unclear); None where there is none."""
    for record in records:
        if isinstance(record, dict):
            if {"chat_id", "parent_chat_id"} & set(record):
                return QWEN
            if {"created_time", "input_tokens"} <= set(record):
                return MOONCAKE_TOKENS
            if "input_length" in record:
                return MOONCAKE
    return MOONCAKE if records else None


def read(rows: Rows, layout: Layout, blocks: Iterable[tuple[int, bytes]]) -> None:
    """Every record of `blocks` (number of the first line, bytes) into `rows`."""
    rows.block_tokens = layout.block_tokens
    reader = _Reader(rows, layout)
    for number, block in blocks:
        reader.block(number, block)
    reader.finish()


class _Reader:
    def __init__(self, rows: Rows, layout: Layout):
        self.rows, self.layout = rows, layout
        self.last: dict[Any, int] = {}  # when the latest turn of each session arrived
        self.followed = 0

    def block(self, number: int, block: bytes) -> None:
        """Many rows at once where they are plain, the others one by one, in the order of the file."""
        lines = block.split(b"\n")
        template = _fast_json.template_of(next(filter(None, lines), b""), self.layout.needed)
        done = np.zeros(0, dtype=np.int64)
        stored = output = ticks = start = ids = done
        if template is not None and self.layout.per_second == 1000:
            found = _fast_json.records(block, template)
            time, stored, output = (found.values[name] for name in self.layout.needed)
            sound = (stored > 0) & (stored <= MOST_TOKENS) & (output > 0) & (output <= MOST_TOKENS)
            sound &= (time <= LAST_SECOND * 1000) & (np.diff(found.start) == -(-stored // self.layout.block_tokens))
            ids = found.ids[np.repeat(sound, np.diff(found.start))]
            start = np.concatenate([[0], np.cumsum(np.diff(found.start)[sound])])
            done, ticks, stored, output = found.fits[sound], time[sound] * (TICKS // 1000), stored[sound], output[sound]
        left = np.ones(len(lines), dtype=bool)
        left[done] = False
        at = 0
        for index in [*np.flatnonzero(left).tolist(), len(lines)]:
            stop = int(np.searchsorted(done, index))
            if stop > at:
                self.rows.add_many(number + done[at:stop], ticks[at:stop], stored[at:stop], output[at:stop])
                self.rows.count.extend(np.diff(start[at : stop + 1]).tolist())
                self.rows.ids.frombytes(np.ascontiguousarray(ids[start[at] : start[stop]]).tobytes())
                at = stop
            if index < len(lines) and lines[index] and not lines[index].isspace():
                self.line(number + index, lines[index].decode("utf-8", "replace"))

    def line(self, number: int, text: str) -> None:
        rows = self.rows
        try:
            record = self.record(text)
            ticks = self.time(record)
            isl = json_length(self.layout.isl, record[self.layout.isl])
            osl = json_length(self.layout.osl, record[self.layout.osl], output=True)
            ids = self.blocks(record, isl)
        except BadRow as why:
            rows.drop(number, str(why), why.failed)
            return
        rows.add(number, ticks, isl, osl)
        rows.count.append(-1 if ids is None else len(ids))
        rows.ids.extend(ids or ())
        session = record.get("session_id")
        if type(session) in (str, int):
            self.last[session] = ticks

    def record(self, text: str) -> dict[str, Any]:
        try:
            record = loads(text, finite=True)
        except BadJson as why:
            raise BadRow(f"the row: {why}" if "the row" not in str(why) else str(why)) from None
        if not isinstance(record, dict):
            raise BadRow(f"the row is {short(record)}; it must be a JSON object.")
        for name in self.layout.needed:
            if name not in record and not (name == self.layout.time and self.previous(record) is not None):
                raise BadRow(f"the field {name} is missing; the row must have {', '.join(self.layout.needed)}, {IDS}.")
        return record

    def previous(self, record: dict[str, Any]) -> int | None:
        """When the turn before this one of its session arrived, for a row that gives a delay and no time."""
        session = record.get("session_id")
        return self.last.get(session) if type(session) in (str, int) and self.delay(record) else None

    def delay(self, record: dict[str, Any]) -> str | None:
        return next((name for name in ("delay", "delay_ms") if name in record), None)

    def time(self, record: dict[str, Any]) -> int:
        if self.layout.time in record:
            return json_ticks(self.layout.time, record[self.layout.time], self.layout.per_second)
        name, before = self.delay(record) or "delay", self.previous(record) or 0
        self.followed += 1
        return before + json_ticks(name, record[name], 1000)

    def blocks(self, record: dict[str, Any], isl: int) -> list[int] | None:
        if IDS not in record:
            return None
        ids = record[IDS]
        if type(ids) is not list or not set(map(type, ids)) <= {int}:
            raise bad(IDS, ids, "a list of whole numbers")
        size = self.layout.block_tokens
        if len(ids) != -(-isl // size):
            raise bad(f"the length of {IDS}", len(ids), f"{-(-isl // size)}, one id per {size} of {isl} input tokens")
        if ids and not (-(2**63) <= min(ids) and max(ids) < 2**63):
            if min(ids) < 0 or max(ids) >= 2**64:
                raise bad(IDS, ids, "a list of whole numbers of 64 bits")
            return [block - 2**64 if block >= 2**63 else block for block in ids]
        return ids

    def finish(self) -> None:
        rows = self.rows
        if self.followed:
            rows.notes.append(
                f"{self.followed:,} rows give a delay and no time: they follow the turn before them by that delay, and "
                f"by how long it took to answer, which the trace does not say: the load is at most this early"
            )
        without = [at for at, count in enumerate(rows.count) if count < 0]
        if len(without) == len(rows):
            if len(rows):
                rows.notes.append(f"no row has {IDS}: cache hits are unknown, every input token counts as computed")
            rows.block_tokens = 0
        elif without:
            gone = set(without)
            lines = [rows.line[at] for at in without]
            for name in ("line", "ticks", "isl", "osl", "count"):
                column = getattr(rows, name)
                setattr(rows, name, type(column)(column.typecode, [v for at, v in enumerate(column) if at not in gone]))
            for line in lines:
                needed = ", ".join((*self.layout.needed, IDS))
                rows.drop(line, f"the field {IDS} is missing; the row must have {needed}.")
            rows.reasons.sort()
