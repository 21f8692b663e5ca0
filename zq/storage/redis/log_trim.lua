#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Has the oldest batches of a log fall off without a publish, for which a full store has no room. KEYS: the log.
-- ARGV: bytes and number that are kept. Returns how many batches it removed, and 1 if more are to be removed.

local log = log_at(1)
local counts = counts_of(log)
if counts.published == 0 then return { 0, 0 } end
fall(log, counts, tonumber(ARGV[1]), tonumber(ARGV[2]), 1)
local gone = remove_fallen(log, counts, MOST_GONE)
keep_counts(log, counts)
return { gone, counts.removed < counts.dropped and 1 or 0 }
