# SPDX-License-Identifier: Apache-2.0
"""Tables of any kind read into memory, and data prepared once per host; without torch but for data_module.py."""
