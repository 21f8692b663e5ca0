#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes expired stages and producers of a project.
-- KEYS: project, queue (not used), transactions, messages of each stage that may have expired.
-- ARGV: now, limit, these stages. Returns as sweep.lua does.

local now, limit, t = number(), number(), transactions()
for at = 3, #ARGV do
  local content = KEYS[keys(1)]
  if not staged(redis.call('HGET', t.stages, ARGV[at]), now) then
    drop(t, ARGV[at], content)
  end
end
local producers = redis.call('ZRANGE', t.producing, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit - (#ARGV - 2))
put('HDEL', t.producers, producers)
put('ZREM', t.producing, producers)

local function first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge) end

local earliest = math.min(first(t.staging), first(t.producing))
return { 0, #ARGV - 2 + #producers, earliest < math.huge and earliest or 0 }
