"""Files of request lengths without arrival times: ServeGen summaries and distributions, and plain length sets."""

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fluidq.io._files import BadJson, loads, short
from fluidq.io._formats._rows import LAST_SECOND, MOST_TOKENS, BadRow, Rows, bad, length
from fluidq.io._formats._table import body, number

SUMMARY = ("client", "window_start_s", "field", "mean", "support_points")
PLAIN = ("num_prefill_tokens", "num_decode_tokens")
OUTPUT, WHOLE_INPUT, TEXT = "output_tokens", "input_tokens", "text_tokens"
KINDS = ("image", "audio", "video")


@dataclass
class Lengths:
    """Mean input and output length [tokens] of each client and window, or of all requests alike (`everyone`).

    `table` maps a client to its windows in order: starts [s] and (input, output) means.
    """

    name: str
    rows: int = 0
    clients: int = 0
    empty: int = 0
    everyone: tuple[float, float] | None = None
    table: dict[str, tuple[list[float], list[tuple[float, float]]]] = field(default_factory=dict)

    def at(self, client: str, time: float) -> tuple[float, float] | None:
        """The means of `client` at `time`: of its latest window that has begun, else of its first one."""
        if self.everyone is not None:
            return self.everyone
        if client not in self.table:
            return None
        starts, means = self.table[client]
        return means[max(bisect.bisect_right(starts, time) - 1, 0)]

    def fill(self, parts: dict[tuple[str, float], dict[str, float]]) -> None:
        """Take the means of each client and window by field name."""
        for (client, start), fields in sorted(parts.items()):
            whole = _whole_input(fields)
            if whole is not None and OUTPUT in fields:
                starts, means = self.table.setdefault(client, ([], []))
                starts.append(start)
                means.append((whole, fields[OUTPUT]))
        self.clients = len({client for client, _ in parts})


def _whole_input(fields: dict[str, float]) -> float | None:
    """Input tokens of all kinds: text, and those of one image, audio or video times how many there are."""
    if WHOLE_INPUT in fields:
        return fields[WHOLE_INPUT]
    if TEXT not in fields:
        return None
    others = (fields.get(f"{kind}_tokens", 0.0) * fields.get(f"{kind}_count", 1.0) for kind in KINDS)
    return fields[TEXT] + math.fsum(others)


def read_summary(rows: Rows, header: list[str], blocks: Iterable[tuple[int, bytes]]) -> Lengths:
    """A ServeGen length summary: one row per client, window and field."""
    at = {name: [h.lower() for h in header].index(name) for name in SUMMARY}
    found = Lengths("ServeGen length summary")
    parts: dict[tuple[str, float], dict[str, float]] = {}
    for line, row in body(header, blocks):
        try:
            if isinstance(row, BadRow):
                raise row
            client, name = row[at["client"]], row[at["field"]]
            if not client or not name:
                raise BadRow("the client or the field is empty.")
            start = number("window_start_s", row[at["window_start_s"]], 0.0, LAST_SECOND, blank=False)
            mean = number("mean", row[at["mean"]], 0.0, MOST_TOKENS, blank=False)
            number("support_points", row[at["support_points"]], 0.0, MOST_TOKENS)
            fields = parts.setdefault((client, start), {})
            if name in fields:
                raise bad("field", name, f"a field that client {client} has not yet named at {start:g} s")
            fields[name] = mean
        except BadRow as why:
            rows.drop(line, str(why))
            continue
        rows.line.append(line)
    found.fill(parts)
    return found


def read_pmf(rows: Rows, blocks: Iterable[tuple[int, bytes]]) -> Lengths:
    """ServeGen length distributions: one JSON object per client and window, with lists of [value, probability]."""
    found = Lengths("ServeGen length distributions")
    parts: dict[tuple[str, float], dict[str, float]] = {}
    for first, block in blocks:
        for offset, text in enumerate(block.decode("utf-8", "replace").split("\n")):
            if not text or text.isspace():
                continue
            try:
                _distribution(text, parts, found)
            except BadJson as why:
                rows.drop(first + offset, f"the row: {why}")
            except BadRow as why:
                rows.drop(first + offset, str(why))
            else:
                rows.line.append(first + offset)
    found.fill({key: fields for key, fields in parts.items() if fields})
    found.clients = len({client for client, _ in parts})
    if found.empty:
        rows.notes.append(f"{found.empty:,} objects have empty lists: the client was silent in that window")
    return found


def _distribution(text: str, parts: dict[tuple[str, float], dict[str, float]], found: Lengths) -> None:
    record = loads(text, finite=True)
    if not isinstance(record, dict):
        raise BadRow(f"the row is {short(record)}; it must be a JSON object.")
    for name in ("client", "window_start_s", WHOLE_INPUT, OUTPUT):
        if name not in record:
            raise BadRow(f"the field {name} is missing; the row must have client, window_start_s, token lists.")
    start = record["window_start_s"]
    if type(record["client"]) not in (str, int):
        raise bad("client", record["client"], "a name or a whole number")
    if type(start) not in (int, float) or not 0 <= start <= LAST_SECOND:
        raise bad("window_start_s", start, f"a time in s from 0 to {LAST_SECOND}")
    key = (str(record["client"]), float(start))
    if key in parts:
        raise bad("window_start_s", start, f"a window that client {key[0]} has not yet named")
    means = {name: _mean(name, record[name]) for name in (WHOLE_INPUT, OUTPUT)}
    parts[key] = {name: mean for name, mean in means.items() if mean is not None}
    if len(parts[key]) == 1:
        del parts[key]
        raise BadRow(f"one of {WHOLE_INPUT} and {OUTPUT} is empty and the other is not.")
    found.empty += not parts[key]


def _mean(name: str, pairs: object) -> float | None:
    """The mean of a list of [value, probability]; None for an empty one. Raises `BadRow`."""
    if type(pairs) is not list:
        raise bad(name, pairs, "a list of [value, probability]")
    total = weight = 0.0
    for pair in pairs:
        if type(pair) is not list or len(pair) != 2 or not all(type(x) in (int, float) for x in pair):
            raise bad(name, pair, "a list of [value, probability]")
        value, share = pair
        if not 0 <= value <= MOST_TOKENS or not 0 <= share <= 1:
            raise bad(name, pair, f"[tokens from 0 to {MOST_TOKENS}, probability from 0 to 1]")
        total, weight = total + value * share, weight + share
    if pairs and not abs(weight - 1.0) < 0.01:
        raise bad(f"the sum of the probabilities of {name}", weight, "1")
    return total / weight if pairs else None


def read_plain(rows: Rows, header: list[str], blocks: Iterable[tuple[int, bytes]]) -> Lengths:
    """A set of request lengths: one row per request, no times."""
    lower = [name.lower() for name in header]
    at_isl, at_osl = (lower.index(name) for name in PLAIN)
    at_total = lower.index("num_total_tokens") if "num_total_tokens" in lower else None
    found = Lengths("request lengths (Vidur CSV)")
    isl = osl = 0
    for line, row in body(header, blocks):
        try:
            if isinstance(row, BadRow):
                raise row
            one, two = length(PLAIN[0], row[at_isl]), length(PLAIN[1], row[at_osl], output=True)
            if at_total is not None and (total := length("num_total_tokens", row[at_total])) != one + two:
                raise bad("num_total_tokens", total, f"{one + two}, the sum of {' and '.join(PLAIN)}")
        except BadRow as why:
            rows.drop(line, str(why), why.failed)
            continue
        rows.line.append(line)
        isl, osl = isl + one, osl + two
    found.rows = len(rows)
    if found.rows:
        found.everyone = (isl / found.rows, osl / found.rows)
    return found
