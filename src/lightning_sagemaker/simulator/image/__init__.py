# SPDX-License-Identifier: Apache-2.0
"""Packages that AWS's training images have installed: this folder is on the PYTHONPATH of simulated hosts."""
