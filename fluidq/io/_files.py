"""Opening what others wrote: bounded, plain or compressed, text or JSON, and nothing in it is ever executed.

Every reader of `fluidq.io` opens files here, so the limits hold everywhere:

- only regular files (no device, no pipe: those never end);
- gzip and zstd are undone, told by their first bytes; a file that inflates past `limit` bytes, or more than
  `MOST_RATIO` times its own size, is refused before it fills the memory;
- a line is at most `line_limit` bytes; JSON nests at most `depth` deep and names each key once;
- text is UTF-8, with or without a byte order mark, with LF, CRLF or CR line ends.

Whatever is wrong ends in an `InputError` of one sentence that names the file and, where there is one, the line.
"""

import json
import os
import re
import reprlib
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fluidq._errors import InputError

PathLike = str | os.PathLike[str]

STREAM_BYTES = 32 << 30  # inflated, of a file that is read in pieces
WHOLE_BYTES = 256 << 20  # inflated, of a file that is held in memory
LINE_BYTES = 16 << 20
MOST_RATIO = 300  # text compresses 5 to 50 times; what gzip makes of zeros, 1,000 times
RATIO_FROM = 16 << 20  # below this many bytes the ratio does no harm
DEPTH = 64
PIECE = 1 << 20

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
OTHERS = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\0": "xz data",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
    b"SQLite format 3\0": "an SQLite database",
}
CONTROL = bytes(set(range(32)) - set(b"\t\n\r"))
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def short(value: object, most: int = 60) -> str:
    """A repr that stays short and on one line, however large or deep the value."""
    show = reprlib.Repr()
    show.maxstring = show.maxother = show.maxlong = most
    show.maxlevel = 2
    return show.repr(value)


# Bytes


def pieces(path: PathLike, *, limit: int = STREAM_BYTES, piece: int = PIECE) -> Iterator[bytes]:
    """The inflated bytes of a file, in pieces of about `piece` bytes (none of them empty).

    `limit` bounds the inflated size. Raises `InputError` for a path that cannot be read or is no regular file, for
    damaged or cut off gzip or zstd data, and for a size or a ratio over the limit.
    """
    file = os.fsdecode(path)
    total = lines = 0
    try:
        with _open(file) as handle:
            head = handle.read(8)
            handle.seek(0)
            kind = "gzip" if head[:2] == GZIP else "zstd" if head[:4] == ZSTD else ""
            inflate = {"gzip": _gzip, "zstd": _zstd, "": _plain}[kind]
            try:
                for data in inflate(handle, piece):
                    total += len(data)
                    if total > limit:
                        raise InputError(f"{file} holds over {limit:,} bytes of data; split it into smaller files.")
                    if kind and total > RATIO_FROM and total > MOST_RATIO * handle.tell():
                        raise InputError(
                            f"{file} inflates to over {MOST_RATIO} times its size, which data does not: refused as a "
                            f"decompression bomb; if it is not, unpack it yourself and give the plain file."
                        )
                    if kind:
                        lines += data.count(b"\n")
                    yield data
            except (EOFError, zlib.error) as error:
                after = f" after line {lines:,}" if lines else ""
                raise InputError(f"{file} is damaged {kind} data{after} ({error}); fetch it again.") from None
    except FileNotFoundError:
        raise InputError(f"{file} does not exist; give the path of a file.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{short(file, 200)} cannot be read ({reason}); give the path of a readable file.") from None


def open_bytes(path: PathLike, *, limit: int = WHOLE_BYTES) -> bytes:
    """The whole inflated content; raises `InputError` as `pieces` does, and over `limit` bytes."""
    return b"".join(pieces(path, limit=limit))


def _open(file: str) -> BinaryIO:
    mode = os.stat(file).st_mode
    if stat.S_ISDIR(mode):
        raise InputError(f"{file} is a folder; name one file in it.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{file} is no regular file (a device or a pipe); save its content to a file first.")
    return Path(file).open("rb")


def _plain(handle: BinaryIO, piece: int) -> Iterator[bytes]:
    while data := handle.read(piece):
        yield data


def _gzip(handle: BinaryIO, piece: int) -> Iterator[bytes]:
    """Members one after the other, zeros between and after them allowed, as the gzip tool does."""
    engine = zlib.decompressobj(wbits=31)
    data = handle.read(1 << 16)
    while data:
        out = engine.decompress(data, piece)
        if out:
            yield out
        data = engine.unconsumed_tail
        if engine.eof:
            data = engine.unused_data
            while data is not None and not (data := data.lstrip(b"\0")):
                data = handle.read(1 << 16) or None
            if not data:
                return
            engine = zlib.decompressobj(wbits=31)
        if not data:
            data = handle.read(1 << 16)
    if not engine.eof:
        raise EOFError("it is cut off before its end mark")


def _zstd(handle: BinaryIO, piece: int) -> Iterator[bytes]:
    """Frames one after the other; the input is fed in small bites because one byte may inflate to 32 kB."""
    try:
        import zstandard
    except ImportError:
        raise InputError("zstd data needs the package zstandard: pip install zstandard.") from None
    context = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    engine, kept, size = context.decompressobj(), [], 0
    fresh = True  # nothing of the present frame was fed yet
    try:
        while data := handle.read(1024):
            while data:
                out = engine.decompress(data)
                fresh = False
                data = b""
                if engine.eof:
                    data, engine, fresh = engine.unused_data, context.decompressobj(), True
                kept.append(out)
                size += len(out)
                if size >= piece:
                    yield b"".join(kept)
                    kept, size = [], 0
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if size:
        yield b"".join(kept)
    if not fresh:
        raise EOFError("it is cut off before its end mark")


# Text


def check_text(file: str, head: bytes) -> None:
    """Refuse what is no UTF-8 text, told from the first bytes; raises `InputError`."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        wide = "UTF-32" if head[:4] == b"\xff\xfe\0\0" else "UTF-16"
        raise InputError(f"{file} is {wide} text; convert it to UTF-8.")
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{file} is binary data ({what}); unpack it or export it as CSV or JSON lines.")
    head = head[:4096]
    if len(head) - len(head.translate(None, CONTROL)) > 0.02 * len(head):
        raise InputError(f"{file} is binary data; it must be UTF-8 text: CSV or JSON lines.")


def line_blocks(
    path: PathLike, *, limit: int = STREAM_BYTES, line_limit: int = LINE_BYTES, piece: int = PIECE
) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines: (number of the first line, bytes with LF ends); no byte order mark, no decoding.

    Only the last block may lack a final LF. Raises `InputError` as `pieces` does, for binary data, and for a line of
    more than `line_limit` bytes.
    """
    file = os.fsdecode(path)
    rest, number, first, held = b"", 1, True, False
    for data in pieces(path, limit=limit, piece=piece):
        if first:
            check_text(file, data)
            data = data.removeprefix(b"\xef\xbb\xbf")
            first = False
        if held:  # a CR at the end of the piece before: with or without its LF it is one line end
            data = b"\n" + data.removeprefix(b"\n")
        held = data.endswith(b"\r")
        if held:
            data = data[:-1]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end == 0:
            rest += data
        else:
            block = rest + data[:end]
            _check_line(file, number, block.find(b"\n"), line_limit)
            yield number, block
            number += block.count(b"\n")
            rest = data[end:]
        _check_line(file, number, len(rest), line_limit)
    if held:
        rest += b"\n"
    if rest:
        yield number, rest


def _check_line(file: str, number: int, length: int, limit: int) -> None:
    if length > limit:
        raise InputError(f"{file}, line {number}: the line is over {limit:,} bytes long; no row of data is.")


def text_lines(
    path: PathLike, *, limit: int = STREAM_BYTES, line_limit: int = LINE_BYTES, strict: bool = True
) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1, without its end. Undecodable bytes raise `InputError`, naming the line, or
    become U+FFFD where `strict` is off. Raises `InputError` as `line_blocks` does.
    """
    file = os.fsdecode(path)
    for number, block in line_blocks(path, limit=limit, line_limit=line_limit):
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for offset, line in enumerate(lines):
            if len(line) > line_limit:
                _check_line(file, number + offset, len(line), line_limit)
            yield number + offset, _decode(file, number + offset, line, strict)


def open_text(path: PathLike, *, limit: int = WHOLE_BYTES, line_limit: int = LINE_BYTES) -> str:
    """The whole text with LF line ends and no byte order mark; raises `InputError` as `text_lines` does."""
    return "\n".join(line for _, line in text_lines(path, limit=limit, line_limit=line_limit))


def _decode(file: str, number: int, line: bytes, strict: bool) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if not strict:
            return line.decode("utf-8", errors="replace")
        raise InputError(
            f"{file}, line {number}: byte {error.start + 1} of the line is no UTF-8 ({line[error.start]:#04x}); "
            f"save the file as UTF-8."
        ) from None


# JSON


def read_json(path: PathLike, *, limit: int = WHOLE_BYTES, depth: int = DEPTH, finite: bool = False) -> Any:
    """The one JSON value of a file. `finite` refuses NaN and Infinity, which JSON does not have but Python writes.

    Raises `InputError` as `open_text` does, and for text that is no JSON (line and column), that nests deeper than
    `depth`, or that names a key twice.
    """
    file = os.fsdecode(path)
    text = open_text(path, limit=limit, line_limit=limit)
    if not text.strip():
        raise InputError(f"{file} is empty; it must be JSON.")
    try:
        return loads(text, depth=depth, finite=finite)
    except BadJson as bad:
        where = f", line {bad.line}" if bad.line else ""
        raise InputError(f"{file}{where}: {bad}") from None


def json_lines(
    path: PathLike,
    *,
    line_limit: int = LINE_BYTES,
    limit: int = STREAM_BYTES,
    depth: int = DEPTH,
    finite: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Each JSON value with the number of its line; blank lines are skipped. Raises `InputError` as `read_json` does,
    naming file and line; a reader that would rather drop the row uses `text_lines` and `loads`.
    """
    file = os.fsdecode(path)
    for number, line in text_lines(path, limit=limit, line_limit=line_limit):
        if line and not line.isspace():
            try:
                yield number, loads(line, depth=depth, finite=finite)
            except BadJson as bad:
                raise InputError(f"{file}, line {number}: {bad}") from None


class BadJson(Exception):
    """Why a text is no usable JSON, and on which of its lines (0: none in particular)."""

    def __init__(self, words: str, line: int = 0):
        super().__init__(words)
        self.line = line


def loads(text: str, *, depth: int = DEPTH, finite: bool = False) -> Any:
    """The value of one JSON text; raises `BadJson`, which says why in a sentence."""
    if text.count("[") + text.count("{") > depth and _depth(text) > depth:
        raise BadJson(f"the row or file is nested too deeply; it must be JSON of at most {depth} levels.")
    text = text.strip(" \t\r\n")
    try:
        value = _PLAIN[finite].decode(text)
        # As many colons as keys: a flat object with no key twice. Anything else is read again, twice as slowly.
        if type(value) is dict and text.count('":') != len(value):
            value = _CAREFUL[finite].decode(text)
        elif type(value) is list and "{" in text:
            value = _CAREFUL[finite].decode(text)
        return value
    except RecursionError:
        raise BadJson(f"the row or file is nested too deeply; it must be JSON of at most {depth} levels.") from None
    except json.JSONDecodeError as error:
        raise BadJson(
            f"{short(text)} is no JSON ({error.msg} at column {error.colno}).", error.lineno if "\n" in text else 0
        ) from None
    except ValueError as error:  # a whole number of thousands of digits
        raise BadJson(f"{short(text)} is no usable JSON ({short(str(error))}).") from None


def _depth(text: str) -> int:
    """The deepest nesting of brackets outside strings."""
    raw = np.frombuffer(_STRING.sub("", text).encode("utf-8", "replace"), dtype=np.uint8)
    step = ((raw == ord("[")) | (raw == ord("{"))).astype(np.int32) - ((raw == ord("]")) | (raw == ord("}")))
    return int(np.cumsum(step).max(initial=0))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadJson(f"the key {short(twice)} is given twice in one object.")
    return made


def _no_constant(name: str) -> float:
    raise BadJson(f"the row holds {name}; every number must be finite.")


_PLAIN = {True: json.JSONDecoder(parse_constant=_no_constant), False: json.JSONDecoder()}
_CAREFUL = {
    True: json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant),
    False: json.JSONDecoder(object_pairs_hook=_once),
}
