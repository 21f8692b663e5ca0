#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes expired messages of a queue. KEYS: project, queue. ARGV: now, limit.
-- Returns how many went, and the earliest expiry of what is left, 0 if nothing is.

local q = queue_at(4)
local expired = load(q, redis.call('ZRANGE', q.expiry, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2]))
remove(q, expired)
local first = redis.call('ZRANGE', q.expiry, 0, 0, 'WITHSCORES')
return { #expired, tonumber(first[2] or 0) }
