#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Counts ready messages. KEYS: project, queue. ARGV: now.
-- Returns how many (-1: so many had expired that this call has done enough by removing some), and how many it removed.

local q = queue_at(4)
local expired = load(q, redis.call('ZRANGE', q.expiry, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, STEPS))
remove(q, expired)
if #expired == STEPS then return { -1, STEPS } end
return { redis.call('ZCOUNT', q.avail, '-inf', ARGV[1]), #expired }
