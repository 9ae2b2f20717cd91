# SPDX-License-Identifier: Apache-2.0
"""Logging to MLflow and Weights & Biases: one run, however often training is interrupted."""
