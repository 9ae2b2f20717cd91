# SPDX-License-Identifier: Apache-2.0
"""Extractive question answering in SQuAD's form."""
