# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.test``."""
