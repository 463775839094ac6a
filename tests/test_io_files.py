"""Opening files: inflated within bounds, text in any line end, JSON without surprises, one sentence for the rest."""

import gzip
import io
import json
import os
import zlib

import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings

from fluidq._errors import InputError
from fluidq.io import _files
from fluidq.io._files import json_lines, line_blocks, loads, open_bytes, open_text, pieces, read_json, text_lines

TEXT = b"one,two\n1,2\n3,4\n"


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.fixture
def put(tmp_path):
    def write(content: bytes, name: str = "file.bin"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def refused(read, path, *words: str) -> str:
    with pytest.raises(InputError) as error:
        read(path)
    message = str(error.value)
    assert "\n" not in message
    assert path.name in message
    for word in words:
        assert word in message
    return message


# Bytes


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        zstd,
        lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:]),
        lambda data: gzip.compress(data) + bytes(1000),
        lambda data: gzip.compress(data[:5]) + bytes(200_000) + gzip.compress(data[5:]),
        lambda data: zstd(data[:5]) + zstd(data[5:]),
    ],
)
def test_content_is_inflated_whole(put, pack):
    assert open_bytes(put(pack(TEXT))) == TEXT
    large = bytes(range(256)) * 20_000
    assert open_bytes(put(pack(large))) == large


def test_pieces_are_small_however_well_the_data_was_packed(put):
    data = b"0123456789abcdef" * 200_000
    for pack in (gzip.compress, zstd):
        sizes = [len(piece) for piece in pieces(put(pack(data)), piece=1 << 16)]
        assert sum(sizes) == len(data)
        assert max(sizes) <= 32 << 20
    assert max(len(piece) for piece in pieces(put(gzip.compress(data)), piece=1 << 16)) <= 1 << 16


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_damaged_archives_are_refused_and_the_last_whole_line_is_named(put, pack):
    rows = b"".join(b"%d,%d\n" % (k, k * k) for k in range(200_000))
    whole = pack(rows)
    for cut in (3, 5, len(whole) // 2, len(whole) - 8):
        refused(open_bytes, put(whole[: len(whole) - cut]), "damaged", "fetch it again")
    assert "after line" in refused(open_bytes, put(whole[: len(whole) // 2]))
    wrong = bytearray(whole)
    wrong[len(wrong) // 2] ^= 0xFF
    refused(open_bytes, put(bytes(wrong)), "damaged")
    refused(open_bytes, put(gzip.compress(TEXT) + b"and more"), "damaged")


def test_bombs_are_refused_before_they_are_unpacked(put):
    zeros = zlib.compressobj(9, wbits=31)
    with io.BytesIO() as out:
        for _ in range(64):
            out.write(zeros.compress(bytes(1 << 20)))
        out.write(zeros.flush())
        refused(open_bytes, put(out.getvalue()), "decompression bomb")
    refused(open_bytes, put(zstd(bytes(64 << 20))), "decompression bomb")
    refused(lambda path: open_bytes(path, limit=1000), put(b"1,2\n" * 1000), "over 1,000 bytes")
    refused(lambda path: open_bytes(path, limit=1000), put(gzip.compress(b"1,2\n" * 1000)), "over 1,000 bytes")


def test_only_regular_files_are_opened(tmp_path):
    refused(open_bytes, tmp_path / "none", "does not exist")
    refused(open_bytes, tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe")
    refused(open_bytes, tmp_path / "pipe", "no regular file")
    with pytest.raises(InputError, match="no regular file"):
        open_bytes("/dev/zero")
    with pytest.raises(InputError, match="cannot be read"):
        open_bytes("a\0b")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    refused(open_bytes, tmp_path / "link", "cannot be read")


def test_zstd_without_its_package_says_what_to_install(put, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(InputError, match="pip install zstandard"):
        open_bytes(put(zstd(TEXT)))


# Text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
def test_lines_are_the_same_whatever_ends_them(put, end, piece):
    lines = ["a,b", "", "1,2", "3,\N{GREEK SMALL LETTER PHI}", ""]
    path = put(b"\xef\xbb\xbf" + end.join(lines).encode() if piece > 3 else end.join(lines).encode())
    blocks = list(line_blocks(path, piece=piece))
    assert b"".join(block for _, block in blocks) == "\n".join(lines).encode()
    counted = 1
    for number, block in blocks:
        assert number == counted
        counted += block.count(b"\n")
    assert list(text_lines(path)) == [(k, line) for k, line in enumerate(lines[:-1], 1)]


def test_blank_lines_at_the_start_are_counted_and_not_kept(put, monkeypatch):
    from fluidq.io import _opening

    monkeypatch.setattr(_opening, "line_blocks", lambda path: line_blocks(path, piece=64))
    line, first, blocks = _opening.opening(str(put(b"\n" * 5000 + b"a,b\n1,2\n")), "CSV")
    assert (line, first, len(blocks)) == (5001, "a,b", 1)


def test_mixed_line_ends_count_once_each(put):
    assert [n for n, _ in text_lines(put(b"a\r\nb\rc\nd\r\r\ne"))] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,\xff\xfe\n", ["line 2", "byte 3", "no UTF-8", "0xff"]),
        (b"\xff\xfea\0", ["UTF-16"]),
        (b"\xfe\xff\0a", ["UTF-16"]),
        ("a,b".encode("utf-32"), ["UTF-32"]),
        ("größe".encode("latin-1") * 50, ["line 1", "no UTF-8"]),
        (bytes(range(256)), ["binary data"]),
        (b"PAR1" + bytes(50), ["Parquet"]),
        (b"\x89PNG\r\n\x1a\n", ["a picture"]),
        (b"BZh91AY", ["bzip2"]),
        (b"\xfd7zXZ\0\0", ["xz data"]),
    ],
)
def test_what_is_no_utf8_text_is_refused(put, content, words):
    refused(open_text, put(content), *words)


def test_long_lines_are_refused_without_being_held(put):
    for content in (b"a\n" + b"x" * 5000, b"a\n" + b"x" * 5000 + b"\nb\n"):
        refused(lambda path: list(text_lines(path, line_limit=1000)), put(content), "line 2", "over 1,000 bytes")
    packed = gzip.compress(b"1,2\n" + b"7" * (20 << 20))
    refused(lambda path: list(line_blocks(path)), put(packed), "line")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_give_lines_or_one_sentence(tmp_path, content, piece):
    path = tmp_path / "any"
    path.write_bytes(content)
    try:
        joined = b"".join(block for _, block in line_blocks(path, piece=piece))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        plain = content.removeprefix(b"\xef\xbb\xbf") if piece > 2 else joined
        assert joined.count(b"\n") == plain.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")


# JSON


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["is empty"]),
        (b'{"a": 1,\n "b": }', ["line 2", "no JSON"]),
        (b'{"a": 1, "a": 2}', ["'a'", "given twice"]),
        (b'{"b": {"a": 1, "a": 2}}', ["given twice"]),
        (b'[{"a": 1, "a": 2}]', ["given twice"]),
        (b"[" * 100_000, ["nested too deeply"]),
        (b"[" * 65 + b"]" * 65, ["nested too deeply"]),
        (b'{"a":' * 70 + b"1" + b"}" * 70, ["nested too deeply"]),
        (b"9" * 10_000, ["no usable JSON"]),
        (b'{"a": 1} {"b": 2}', ["no JSON"]),
        (b"{'a': 1}", ["no JSON"]),
        (b'"\xff"', ["line 1", "no UTF-8"]),
    ],
)
def test_bad_json_is_refused_with_its_line(put, text, words):
    refused(read_json, put(text), *words)


def test_json_within_the_rules_is_read(put):
    for value in ({"a": [1, {"b": "[[[[{{{{" * 100}]}, [1.5, None], "x", 7):
        assert read_json(put(json.dumps(value, indent=1).encode())) == value
    assert read_json(put(b'{"a": NaN}'))["a"] != 0
    refused(lambda path: read_json(path, finite=True), put(b'{"a": NaN}'), "NaN", "must be finite")
    refused(lambda path: read_json(path, limit=10), put(b'{"a": "0123456789"}'), "over 10 bytes")
    assert json.loads(json.dumps(loads("[" * 60 + "]" * 60))) is not None


def test_json_lines_number_their_values(put):
    path = put(b'\xef\xbb\xbf{"a": 1}\r\n\r\n[2]\n')
    assert list(json_lines(path)) == [(1, {"a": 1}), (3, [2])]
    refused(lambda path: list(json_lines(path)), put(b'{"a": 1}\n{"a"}\n'), "line 2", "no JSON")
    refused(lambda path: list(json_lines(path, line_limit=20)), put(b'{"a": 1}\n"' + b"x" * 50 + b'"'), "line 2")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_a_value_or_a_reason(text):
    try:
        loads(text)
    except _files.BadJson as bad:
        assert "\n" not in str(bad)  # noqa: PT017
