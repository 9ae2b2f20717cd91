# SPDX-License-Identifier: Apache-2.0
"""A training in MLflow and in Weights & Biases: one run there, however often it was interrupted here."""
