"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import derivations
import fluidq

MODULES = [
    m.name
    for package in (fluidq, derivations)
    for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not m.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
