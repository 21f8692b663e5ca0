# SPDX-License-Identifier: Apache-2.0
"""Long tests of stores in an object store, and of the properties of Swift that they need."""
