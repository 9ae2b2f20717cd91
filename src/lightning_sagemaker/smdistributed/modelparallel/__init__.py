# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel`` (SMP, version 1)."""

__version__ = "1.15.0"
"""The last version that AWS has documented; scripts and transformers choose their code by it."""
