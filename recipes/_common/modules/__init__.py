# SPDX-License-Identifier: Apache-2.0
"""The base of the recipes' LightningModules, their optimizers, models, adapters and metrics."""
