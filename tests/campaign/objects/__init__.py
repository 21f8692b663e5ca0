# SPDX-License-Identifier: Apache-2.0
"""Long tests of stores in an object store, and of the Swift properties that they need."""
