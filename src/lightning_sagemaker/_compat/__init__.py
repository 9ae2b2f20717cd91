# SPDX-License-Identifier: Apache-2.0
"""All uses of other libraries' private names, which are checked on import, so that a missing one is an error."""
