# SPDX-License-Identifier: Apache-2.0
"""Data tables of the package, each with its date and source."""
