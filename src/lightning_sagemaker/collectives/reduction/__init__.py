# SPDX-License-Identifier: Apache-2.0
"""Gradients reduced in other ways than by one all-reduce: within hosts first, in fewer bits, in low rank."""
