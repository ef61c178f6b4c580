"""x"""
from assay.formulas.grammar import CellRef, Formula, parse, parse_address
from assay.formulas.tasks import Task, build_tasks, task_at
from assay.formulas.workbook import Workbook
from assay.formulas.generator import make_workbook, make_workbooks
