#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Counts ready messages. KEYS: project, queue. ARGV: now.
-- Returns how many; -1 if so many had expired that this call has done enough by removing some of them.

local q = queue_at(4)
local expired = load(q, redis.call('ZRANGE', q.expiry, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, STEPS))
remove(q, expired)
if #expired == STEPS then return -1 end
return redis.call('ZCOUNT', q.avail, '-inf', ARGV[1])
