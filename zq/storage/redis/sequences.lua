-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that give sequences or read them.

local DIGITS = 14
local PER_MS = 16           -- a queue's sequences rise with the clock at least so fast: see decision 0011
local MAX_BY_CLOCK = 9e13

-- The last sequence given, or, what is more, the one that the clock is at.
local function counted(sequence, start, now) return math.max(sequence, math.min(now * PER_MS - start, MAX_BY_CLOCK)) end
