"""What a prefix cache holds of each request, from the ids of its blocks."""

from collections import OrderedDict

import numpy as np
from jaxtyping import Int32, Int64

Counts = Int32[np.ndarray, " requests"]
Ids = Int64[np.ndarray, " blocks"]
Hits = Int64[np.ndarray, " requests"]


def in_order(ids: Ids, counts: Counts, order: np.ndarray) -> tuple[Ids, Counts]:
    """The ids of all requests one after the other, and how many each has, with the requests in another `order`."""
    starts = np.cumsum(counts, dtype=np.int64) - counts
    counts = counts[order]
    ends = np.cumsum(counts, dtype=np.int64)
    inside = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - counts, counts)
    return ids[np.repeat(starts[order], counts) + inside], counts


def leading_hits(ids: Ids, counts: Counts, capacity: int | None = None) -> Hits:
    """How many leading blocks of each request the cache holds when it comes; the cache is empty at the start.

    `ids` names the blocks of all requests one after the other, in the order of arrival; `counts` says how many each
    has. `capacity` [blocks] bounds the cache; what was not used for longest goes first, and of one request its last
    block (no block outlives the one before it). None: no bound.
    """
    if capacity is None or not ids.size:
        return _unbounded(ids, counts)
    return _bounded(ids, counts, capacity)


def _unbounded(ids: Ids, counts: Counts) -> Hits:
    """Without a bound a block is held as soon as an earlier request named it: no loop is needed."""
    hits = np.zeros(counts.size, dtype=np.int64)
    if not ids.size:
        return hits
    if ids.min() < 0 or ids.max() > 8 * ids.size + 1_000_000:
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
    request = np.repeat(np.arange(counts.size), counts)
    first = np.zeros(int(ids.max()) + 1, dtype=np.int64)
    first[ids[::-1]] = request[::-1]  # of equal indices the last assignment stays: the earliest request
    filled = np.flatnonzero(counts)
    starts = (np.cumsum(counts, dtype=np.int64) - counts)[filled]
    inside = np.arange(ids.size) - np.repeat(starts, counts[filled])
    missed = np.where(first[ids] < request, np.iinfo(np.int64).max, inside)
    hits[filled] = np.minimum(np.minimum.reduceat(missed, starts), counts[filled])
    return hits


def _bounded(ids: Ids, counts: Counts, capacity: int) -> Hits:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = np.zeros(counts.size, dtype=np.int64)
    stop = 0
    for at, count in enumerate(counts.tolist()):
        start, stop = stop, stop + count
        blocks = ids[start:stop].tolist()
        held = next((k for k, block in enumerate(blocks) if block not in cache), count)
        hits[at] = held
        for block in reversed(blocks):  # the first block last, so that it stays longest
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits
