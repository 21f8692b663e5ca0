#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- The store's time, kept so that a failover to a server whose clock is behind does not turn it back. KEYS: zq:clock.
-- ARGV: microseconds ahead of TIME at which what is kept stems from a clock that was wrong. Returns microseconds.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local seen = tonumber(redis.call('GET', KEYS[1]) or 0)
if seen > now and seen <= now + tonumber(ARGV[1]) then return seen end
redis.call('SET', KEYS[1], now)
return now
