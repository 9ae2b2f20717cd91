# SPDX-License-Identifier: Apache-2.0
"""Process groups that send each collective to the engine which can do it."""
