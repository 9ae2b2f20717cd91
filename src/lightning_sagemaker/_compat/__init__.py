# SPDX-License-Identifier: Apache-2.0
"""Where private names of other libraries are touched: looked for when this is imported, so that one that is gone is said."""
