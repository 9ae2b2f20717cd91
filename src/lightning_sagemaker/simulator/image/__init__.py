# SPDX-License-Identifier: Apache-2.0
"""What AWS's training images have installed: this folder is on the module path of simulated hosts."""
