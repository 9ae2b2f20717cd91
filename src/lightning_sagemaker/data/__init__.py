# SPDX-License-Identifier: Apache-2.0
"""Data for several processes."""
