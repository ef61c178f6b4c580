"""Findings in the order of execution, each explained by the first rule that holds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.difftest.collectives import odd_ones
from assay.difftest.diagnose.factors import (
    rule_accumulation,
    rule_gnorm,
    rule_loss,
    rule_scale,
    rule_untied,
    rule_weight_gradient,
)
from assay.difftest.diagnose.places import rule_mask, rule_missing_sum, rule_permutation, rule_rank, rule_rows
from assay.difftest.diagnose.step import ranks_of, whole_step_rules
from assay.difftest.diagnose.structure import COMPUTE, Rule, rule_layers, rule_recompute, rule_region, rule_replica
from assay.difftest.names import Name

if TYPE_CHECKING:
    from assay.difftest.check import Comparison, Finding, Result, Verdict


def diagnose(state: Comparison, result: Result) -> list[Finding]:
    """Findings in order; all but the first and what stands by itself are consequences."""
    from assay.difftest.check import Finding

    wrong = [v for v in result.verdicts if v.status == "wrong"]
    extra = whole_step_rules(state, result)
    if not wrong and not extra:
        return []
    findings: list[Finding] = []
    for i, verdict in enumerate(wrong):
        n = Name.parse(verdict.name)
        finding = Finding(
            verdict.name, n.module, n.phase, "wrong value", (), verdict.relative, verdict.tolerance, [], COMPUTE, 0.3,
            consequence=i > 0 and not _stands_alone(verdict, wrong[:i]), order=verdict.order,
        )  # fmt: skip
        if not finding.consequence or i < 3:
            _explain(state, result, verdict, finding)
        findings.append(finding)
    findings = sorted([*extra, *findings], key=lambda f: (f.order, f.consequence))
    for i, f in enumerate(findings):
        if i and f.consequence is False and findings[0].order < f.order and findings[0].kind == f.kind == "not updated":
            f.consequence = True
    odd = odd_ones(state.candidate.collectives())
    if odd and findings:
        module = findings[0].module
        near = [o for o in odd if module.split(".")[0] in o or re.escape(module) in o] or odd
        findings[0].evidence += [f"collectives: {o}" for o in near[:2]]
    return findings


def _stands_alone(verdict: Verdict, before: list[Verdict]) -> bool:
    """Copies that differ, and second passes that differ, stand by themselves if they are the first such."""
    if not verdict.problems:
        return False
    kind = verdict.problems[0].kind
    return not any(p.kind == kind for v in before for p in v.problems)


def _explain(state: Comparison, result: Result, verdict: Verdict, finding: Finding) -> None:
    limit = f"relative error {verdict.relative:.3g}, tolerance {verdict.tolerance:.3g} ({verdict.reason})"
    finding.evidence.append(limit)
    if verdict.note:
        finding.evidence.append(verdict.note)
    finding.ranks = ranks_of(state, verdict.name)
    full = all(
        verdict.name in side and side.level(verdict.name) == "full" for side in (state.reference, state.candidate)
    )
    structural = any(p.kind != "replica conflict" for p in verdict.problems)
    for rule in RULES if full or structural else WITHOUT_TENSORS:
        if rule(state, result, verdict, finding):
            return


WITHOUT_TENSORS: list[Rule] = [rule_recompute, rule_layers, rule_region, rule_replica, rule_scale]


RULES: list[Rule] = [
    rule_recompute, rule_layers, rule_region, rule_replica, rule_loss, rule_gnorm, rule_untied, rule_accumulation,
    rule_permutation, rule_missing_sum, rule_scale, rule_mask, rule_rows, rule_weight_gradient, rule_rank,
]  # fmt: skip
