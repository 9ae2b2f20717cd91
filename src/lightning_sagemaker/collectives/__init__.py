# SPDX-License-Identifier: Apache-2.0
"""Process groups that dispatch each collective to an engine that supports it."""
