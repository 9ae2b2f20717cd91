# SPDX-License-Identifier: Apache-2.0
"""The precision that ``auto`` selects on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags of native bfloat16 multiplication in ``/proc/cpuinfo`` (x86: the first two; Arm: the last)."""


def automatic_precision() -> tuple[str, str]:
    """Lightning's precision name for this machine, and the reason."""
    if torch.cuda.is_available():
        # Without emulation: an older GPU reports support that is slower than float32.
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU supports bfloat16"
        return "32-true", "the GPU does not support bfloat16"
    found = sorted(_BFLOAT16_FLAGS & _processor_flags())
    if found:
        return "bf16-mixed", f"the CPU has {', '.join(found)}"
    return "32-true", "the CPU has no native bfloat16"


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return set(next(lines, "").split())
