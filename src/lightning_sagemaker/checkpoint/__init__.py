# SPDX-License-Identifier: Apache-2.0
"""Writes and reads checkpoints, and the training state that no ``state_dict`` has; exports models."""
