# SPDX-License-Identifier: Apache-2.0
"""The code that SageMaker serves a model with; copied next to the model, so it imports nothing from this package."""
