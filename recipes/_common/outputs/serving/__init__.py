# SPDX-License-Identifier: Apache-2.0
"""The code that SageMaker serves a model with; copied beside the model, so it imports nothing of this package."""
