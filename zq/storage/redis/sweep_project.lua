#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes what has expired of a project's stages, producers, answers, published batches and documents, what was
-- purged, and what has fallen off. KEYS: project, queue (not used), transactions, answers, log, documents, messages of
-- each stage that may have expired. ARGV: now, limit, these stages. Returns as sweep.lua does.

local now, limit, t, answers, log = number(), number(), transactions(), keys(2), log_at(keys(LOG_KEYS))
local documents = keys(3)
left = limit - (#ARGV - 2)
for at = 3, #ARGV do
  local content = KEYS[keys(1)]
  if not staged(redis.call('HGET', t.stages, ARGV[at]), now) then
    drop(t, ARGV[at], content)
  end
end
local producers = due(t.producing, now)
put('HDEL', t.producers, producers)
put('ZREM', t.producing, producers)
forget_answers(KEYS[answers], KEYS[answers + 1], now)
local expired = due(KEYS[documents + 2], now)
for at = documents, documents + 2 do put(at == documents and 'HDEL' or 'ZREM', KEYS[at], expired) end

discard(log, due(log.fading, now))

-- What publishing has left of what fell off. Where that is more than a slice, this call has done enough.
local counts = counts_of(log)
if left > 0 and counts.removed < counts.dropped then
  left = left - remove_fallen(log, counts, left)
  if counts.removed < counts.dropped then left = 0 end
  redis.call('HSET', log.counts, 'removed', counts.removed)
end

-- What was purged of a topic. The floor goes with the last of it.
local function clear(topic, floor)
  local purged = {}
  for _, front in ipairs(fronts(log, topic, 0, left)) do
    if opened(front).last <= floor then purged[#purged + 1] = front end
  end
  discard(log, purged)
  left = left - #purged
  if left > 0 then
    left = left - 1
    redis.call('HDEL', log.purged, topic)
  end
end

local cursor = '0'
repeat
  local scanned = redis.call('HSCAN', log.purged, cursor)
  cursor = scanned[1]
  for at = 1, #scanned[2], 2 do clear(scanned[2][at], tonumber(scanned[2][at + 1])) end
until cursor == '0' or left == 0
return { 0, limit - left, earliest(t.staging, t.producing, KEYS[answers + 1], KEYS[documents + 2], log.fading) }
