"""Engines that are programs or packages of their own: right values where they are there, a named error elsewhere."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from assay.formulas import CellRef, Engine, EngineMissing, Unsupported, Workbook, parse

CELLS = {
    "A1": 2.0, "A2": 3.5, "A3": -1.0, "B1": "x", "B2": "yz", "C1": True, "C2": ("=A1*2", 4.0),
}  # fmt: skip
FORMULAS = {
    "A1*A2+C2": 11.0, "SUM(A1:A3)": 4.5, "B1&B2": "xyz", "IF(A1<A2,10,20)": 10.0, "MAX(A1:A3)-MIN(A1:A3)": 4.5,
    "ROUND(A2/3,2)": 1.17, "COUNT(A1:C2)": 3.0, "-A1^2": 4.0, "SUM(S!A1:A2)": 5.5,
}  # fmt: skip


def agrees(name, formulas):
    book = Workbook.from_cells({"S": CELLS})
    engine = Engine(name)
    for formula, value in formulas.items():
        found = engine.evaluate(book, "S", CellRef("S", 9, 9), formula)
        assert not isinstance(found, Unsupported), (name, formula, found)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), (name, formula)


@pytest.mark.parametrize("name", ["builtin", "auto", "formualizer"])
def test_engines_agree(name):
    if name == "formualizer":
        pytest.importorskip("formualizer")
    agrees(name, FORMULAS)


@pytest.mark.skipif(not (shutil.which("soffice") or shutil.which("libreoffice")), reason="LibreOffice is not installed")
def test_libreoffice_agrees():
    """Each formula is a conversion of about two seconds, so a few stand for the rest."""
    agrees("libreoffice", {k: FORMULAS[k] for k in ("A1*A2+C2", "B1&B2", "-A1^2")})


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("soffice") or shutil.which("libreoffice")), reason="LibreOffice is not installed")
def test_libreoffice_agrees_on_all():
    """All but one: Calc keeps truth values of cells as numbers and counts them, Excel does not."""
    agrees("libreoffice", FORMULAS | {"COUNT(A1:C2)": 4.0, "COUNT(A1:B2)": 2.0})


def test_libreoffice_is_named_where_it_is_absent(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EngineMissing, match="libreoffice-calc"):
        Engine("libreoffice")


@pytest.mark.skipif(importlib.util.find_spec("formulas") is None, reason="the package formulas is not installed")
def test_the_package_formulas_agrees():
    agrees("formulas", {k: v for k, v in FORMULAS.items() if k != "-A1^2"})


def test_the_package_formulas_is_named_where_it_is_absent(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "formulas", None)
    with pytest.raises(EngineMissing, match="pip install formulas"):
        Engine("formulas")


def test_tables_and_names_are_unsupported_by_engines_that_see_single_cells():
    pytest.importorskip("formualizer")
    book = Workbook.from_cells({"S": CELLS})
    found = Engine("formualizer").evaluate(book, "S", CellRef("S", 9, 9), "Rate*2")
    assert isinstance(found, Unsupported)
    assert parse("Rate*2").names()
