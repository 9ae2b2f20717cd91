# SPDX-License-Identifier: Apache-2.0
"""ALBERT masked-language-model pretraining."""
