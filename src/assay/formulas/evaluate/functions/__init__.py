"""The functions of the evaluator; importing this package enters them in the table."""

from assay.formulas.evaluate.functions import dates, finance, logic, lookup, maths, statistics, text

__all__ = ["dates", "finance", "logic", "lookup", "maths", "statistics", "text"]
