# SPDX-License-Identifier: Apache-2.0
"""Time and cost of training: measured (``bench``), and predicted for SageMaker instances (``plan``)."""
