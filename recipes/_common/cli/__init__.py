# SPDX-License-Identifier: Apache-2.0
"""The recipes' command line: their descriptions, options, help and LightningCLI."""
