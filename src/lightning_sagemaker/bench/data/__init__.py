# SPDX-License-Identifier: Apache-2.0
"""Tables with their dates and sources: accelerators, model sizes, and the constants of the model of scaling."""
