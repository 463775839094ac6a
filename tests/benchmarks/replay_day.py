"""The benchmark's third peer: the request-level replay of the same day under the same policy."""

import time

from fluidq.replay import draw, replay


def seconds(case, fleet, share: float = 1 / 48) -> float:
    """Seconds that the replay of a day takes, from the busiest `share` of it."""
    workload = case.workload
    span = workload.duration * share
    start = 0.5 * workload.duration
    part = workload.slice(start, start + span)
    requests = draw(part, 0)
    begin = time.perf_counter()
    replay(fleet, requests, case.policy)
    return (time.perf_counter() - begin) * workload.requests / part.requests
