# SPDX-License-Identifier: Apache-2.0
"""A job as it is described."""
