# SPDX-License-Identifier: Apache-2.0
"""Classification and regression of texts and pairs of texts."""
