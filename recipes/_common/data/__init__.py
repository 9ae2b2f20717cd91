# SPDX-License-Identifier: Apache-2.0
"""Reads tables and prepares data once per host; only data_module.py, loaders.py and ranges.py import torch."""
