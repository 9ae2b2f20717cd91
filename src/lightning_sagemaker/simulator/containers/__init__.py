# SPDX-License-Identifier: Apache-2.0
"""The two contracts that SageMaker's containers have with a training script."""
