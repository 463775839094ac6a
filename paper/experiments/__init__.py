"""The experiments of the paper, by the name of their file in `paper/measured/`."""

from paper.experiments import day, engines, health, published, traces, tuning, validation

EXPERIMENTS = {e.name: e for e in (x.EXPERIMENT for x in (day, traces, tuning, health, engines, published, validation))}
