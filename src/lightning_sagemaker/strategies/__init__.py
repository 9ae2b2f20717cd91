# SPDX-License-Identifier: Apache-2.0
"""The strategies of the Trainer and their twins for Fabric."""
