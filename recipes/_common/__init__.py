# SPDX-License-Identifier: Apache-2.0
"""Shared by the recipes: command line, base classes of data and models, and the outputs of a run.

Imports nothing, so that preparing data needs neither torch nor Lightning.
"""
