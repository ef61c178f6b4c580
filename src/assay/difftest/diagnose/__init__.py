"""From the form of an error to words: which kind of mistake makes tensors differ like this.

Each rule looks at one thing and says what it saw. They are tried in order; the first that holds names the finding.
"""

from __future__ import annotations

from assay.difftest.diagnose.order import diagnose

__all__ = ["diagnose"]
