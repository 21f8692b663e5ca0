#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- What a calendar has due, earliest first, and the calendar for this round alone. KEYS: calendar, its sweeper.
-- ARGV: now, limit, the round, for how many ms. Returns members; none if nothing is due or another round is at it.

local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #due == 0 then return due end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[3] then return {} end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return due
