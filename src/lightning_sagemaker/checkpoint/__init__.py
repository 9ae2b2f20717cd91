# SPDX-License-Identifier: Apache-2.0
"""Writing models so that others can load them."""
