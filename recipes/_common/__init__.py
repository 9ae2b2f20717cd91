# SPDX-License-Identifier: Apache-2.0
"""What the recipes share: command line, data and model base classes, and what a run leaves behind at its end.

Nothing is imported here, so that preparing data needs neither torch nor Lightning.
"""
