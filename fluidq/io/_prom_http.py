"""The one place that talks to a network: GET from the Prometheus server whose address was given, and from no other."""

import http.client
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from fluidq._errors import InputError, refuse
from fluidq.io._files import BadJson, loads, short

TIMEOUT = 30.0  # s, for one whole answer
MOST_BYTES = 64 << 20  # of one answer
MOST_POINTS = 11_000  # per series and query: the server refuses more
PIECE = 1 << 16


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        fp.close()
        raise InputError(
            f"{req.full_url.split('?')[0]} redirects to {short(newurl, 200)}, which is not followed; "
            f"give the address of the Prometheus server itself."
        )


class Client:
    """A Prometheus HTTP API, or one that speaks it.

    `address` is http:// or https://, with a path prefix where the server has one. No proxy of the environment is used,
    no redirect is followed, no credential is sent. `timeout` [s] bounds each answer as a whole, `limit` its bytes.

    Raises `InputError`, here and from each method, naming the address and what went wrong.
    """

    def __init__(self, address: str, *, timeout: float = TIMEOUT, limit: int = MOST_BYTES):
        wanted = "an address such as http://prometheus:9090"
        try:
            parts = urllib.parse.urlsplit(address)
            port = parts.port  # raises where it is no port
        except ValueError:
            raise refuse("the Prometheus address", address, wanted) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise refuse("the Prometheus address", address, wanted)
        if parts.username is not None or parts.query or parts.fragment or any(c in address for c in " \r\n\t"):
            raise refuse("the Prometheus address", address, f"{wanted}, without user, password, query or fragment")
        if not 0 < timeout <= 3600:
            raise refuse("timeout", timeout, "a time in (0, 3600] s")
        self.address, self.timeout, self.limit = address.rstrip("/"), timeout, limit
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def get(self, path: str, query: Mapping[str, str | list[str]]) -> Any:
        """The JSON that the API gives for `path` ("query_range") with the parameters `query`.

        A server may send one byte now and then, in the headers too, and never break a socket's own timeout: the
        exchange runs in a thread of its own, which is left behind when the time is over.
        """
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        deadline = time.monotonic() + self.timeout

        def exchange() -> None:
            try:
                done.put(self._json(path, self._get(path, url, deadline)))
            except InputError as error:
                done.put(error)

        threading.Thread(target=exchange, daemon=True).start()
        try:
            answer = done.get(timeout=self.timeout)
        except queue.Empty:
            raise self._late() from None
        if isinstance(answer, InputError):
            raise answer
        return answer

    def _get(self, path: str, url: str, deadline: float) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": "application/json", "Accept-Encoding": "identity"})
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                return self._read(answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise InputError(self._refusal(path, error, deadline)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
            if isinstance(error, InputError):
                raise
            reason = short(str(getattr(error, "reason", None) or error), 200)
            raise InputError(f"{self.address} does not answer ({reason}); is it the right address?") from None

    def _read(self, answer: Any, deadline: float) -> bytes:
        pieces, size = [], 0
        while piece := answer.read1(PIECE):
            size += len(piece)
            if size > self.limit:
                raise InputError(
                    f"{self.address} sent over {self.limit:,} bytes; ask for a shorter time, a longer step, or fewer "
                    f"series (select)."
                )
            if time.monotonic() > deadline:
                raise self._late()
            pieces.append(piece)
        return b"".join(pieces)

    def _late(self) -> InputError:
        return InputError(
            f"{self.address} took over {self.timeout:g} s; ask for a shorter time or a longer step, or set timeout."
        )

    def _json(self, path: str, body: bytes) -> Any:
        try:
            return loads(body.decode("utf-8"))
        except (UnicodeDecodeError, BadJson) as error:
            raise InputError(f"{self.address} answered {path} with no JSON ({short(str(error), 200)}).") from None

    def _refusal(self, path: str, error: urllib.error.HTTPError, deadline: float) -> str:
        """The server's own words, which the API puts into JSON."""
        try:
            said = self._json(path, self._read(error, deadline))
            words = f"{said['errorType']}: {said['error']}"
        except (InputError, OSError, http.client.HTTPException, KeyError, TypeError):
            words = error.reason
        return f"{self.address} refused {path} with {error.code} ({short(str(words), 300)})."

    def names(self, patterns: list[str], start: float, end: float) -> list[str]:
        """The metric names that match one of the regular expressions and have samples between the two Unix times."""
        query = {"match[]": [f'{{__name__=~"{pattern}"}}' for pattern in patterns]}
        said = self.get("label/__name__/values", {**query, "start": f"{start:.3f}", "end": f"{end:.3f}"})
        data = said.get("data") if isinstance(said, dict) else None
        if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
            raise InputError(f"{self.address} answered with {short(said)}; it must be a list of metric names.")
        return data

    def ranges(self, query: str, start: float, end: float, step: float) -> list[Any]:
        """`query_range` answers that cover the time between them, each within the server's limit of points.

        The points are start, start + step, ...; none is asked for twice.
        """
        answers = []
        total = int((end - start) / step * (1 + 1e-12)) + 1
        for first in range(0, total, MOST_POINTS):
            last = min(first + MOST_POINTS, total) - 1
            at = {"start": f"{start + first * step:.3f}", "end": f"{start + last * step:.3f}", "step": f"{step:g}"}
            answers.append(self.get("query_range", {"query": query, **at}))
        return answers


def selector(name: str, labels: Mapping[str, str]) -> str:
    """A PromQL selector of the series `name` with exactly these label values; quotes in them are escaped."""

    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    parts = ",".join(f"{label}={quoted(value)}" for label, value in labels.items())
    return f"{name}{{{parts}}}" if parts else name
