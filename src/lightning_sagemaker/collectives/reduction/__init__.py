# SPDX-License-Identifier: Apache-2.0
"""Gradient reductions other than one all-reduce: hierarchical, with fewer bits, low-rank."""
