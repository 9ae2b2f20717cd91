# SPDX-License-Identifier: Apache-2.0
"""Starts, monitors and replaces a host's processes; one coordinator decides which ranks take part in a step."""
