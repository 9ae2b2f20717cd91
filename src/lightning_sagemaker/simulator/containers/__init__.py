# SPDX-License-Identifier: Apache-2.0
"""Files, variables and arguments that SageMaker's two generations of containers give a training script."""
